-- All work of devices with its launching call, by start.
--
-- requires: rocpd_op(id, gpuId, start, end, description_id, opType_id)
-- requires: rocpd_api_ops(api_id, op_id)
-- requires: rocpd_api(id, pid)
WITH
launches AS (
    SELECT
        link.op_id AS op_id,
        MIN(link.api_id) AS api_id
    FROM rocpd_api_ops AS link
    GROUP BY link.op_id
)

SELECT
    work.start AS start_ns,  -- when it began on the device, ns of the node's clock
    work."end" AS end_ns,  -- when it finished
    COALESCE(call.pid, -1) AS pid,  -- process that launched it; -1 unknown
    COALESCE(work.gpuId, -1) AS device_id,  -- number of the GPU
    COALESCE(launches.api_id, -1) AS call_id,  -- number of the launching call; -1 unknown
    COALESCE(work.description_id, -1) AS description_id,  -- number of a kernel's name
    COALESCE(work.opType_id, -1) AS kind_id  -- number of what kind it is
FROM rocpd_op AS work
LEFT JOIN launches ON work.id = launches.op_id
LEFT JOIN rocpd_api AS call ON launches.api_id = call.id
ORDER BY work.start, work.id
