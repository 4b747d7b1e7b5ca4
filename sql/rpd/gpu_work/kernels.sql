-- All kernels that ran on devices, sorted by id.
--
-- requires: work(row_number, start_ns, end_ns, process_id, agent_id, kernel_id, call_id, is_kernel)
SELECT
    dispatch.start_ns AS start_ns,  -- start time on the device
    dispatch.end_ns AS end_ns,  -- end time
    COALESCE(dispatch.process_id, -1) AS process_id,  -- launching process, or -1 if unknown
    COALESCE(dispatch.agent_id, -1) AS agent_id,  -- number of the GPU
    COALESCE(dispatch.kernel_id, -1) AS kernel_id,  -- id of a name in kernel_names.sql
    COALESCE(dispatch.call_id, -1) AS event_id  -- id of the launching call, or -1 if there is none
FROM work AS dispatch
WHERE dispatch.is_kernel
ORDER BY dispatch.row_number
