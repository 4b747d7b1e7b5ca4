-- All copies and fills, sorted by id.
--
-- requires: work(row_number, start_ns, end_ns, process_id, agent_id, call_id, kind, is_kernel)
-- requires: copy_calls(call_id, size)
SELECT
    copied.start_ns AS start_ns,  -- start time
    copied.end_ns AS end_ns,  -- end time
    COALESCE(copied.process_id, -1) AS process_id,  -- launching process, or -1 if unknown
    COALESCE(copied.agent_id, -1) AS to_agent_id,  -- GPU that ran the copy
    -1 AS from_agent_id,  -- not recorded
    COALESCE(copied.call_id, -1) AS event_id,  -- id of the launching call, or -1 if there is none
    COALESCE(copy_call.size, -1) AS size,  -- number of bytes, or -1 if unknown
    CASE
        WHEN copied.kind GLOB '*Fill*' OR copied.kind GLOB '*Memset*' THEN -1
        WHEN copied.kind GLOB '*HostToDevice*' THEN 1
        WHEN copied.kind GLOB '*DeviceToHost*' THEN 2
        WHEN copied.kind GLOB '*DeviceToDevice*' THEN 3
        ELSE 0
    END AS direction  -- code of Direction in model/copies.py, or -1 for a fill
FROM work AS copied
LEFT JOIN copy_calls AS copy_call ON copied.call_id = copy_call.call_id
WHERE NOT copied.is_kernel
ORDER BY copied.row_number
