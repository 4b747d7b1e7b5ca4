-- GPU work with its launching call and its type.
--
-- requires: rocpd_op(id, gpuId, start, end, description_id, opType_id)
-- requires: rocpd_api_ops(api_id, op_id)
-- requires: rocpd_api(id, pid)
-- requires: rocpd_string(id, string)
WITH
launches AS (
    SELECT
        link.op_id AS op_id,
        MIN(link.api_id) AS api_id
    FROM rocpd_api_ops AS link
    GROUP BY link.op_id
)

SELECT
    op.id AS row_number,  -- row number
    op.start AS start_ns,  -- start time on the device, in ns on the node's clock
    op."end" AS end_ns,  -- end time, on the same clock
    call.pid AS process_id,  -- process that launched the work
    op.gpuId AS agent_id,  -- number of the GPU
    op.description_id AS kernel_id,  -- rocpd_string.id of a kernel's name
    launches.api_id AS call_id,  -- rocpd_api.id of the launching call
    kind.string AS kind,  -- type of the work, such as CopyHostToDevice
    COALESCE(named.string, '') != ''
    OR kind.string GLOB '*Kernel*'
    OR kind.string GLOB '*Task*' AS is_kernel  -- if not, it is a copy or a fill
FROM rocpd_op AS op
LEFT JOIN launches ON op.id = launches.op_id
LEFT JOIN rocpd_api AS call ON launches.api_id = call.id
LEFT JOIN rocpd_string AS named ON op.description_id = named.id
LEFT JOIN rocpd_string AS kind ON op.opType_id = kind.id
