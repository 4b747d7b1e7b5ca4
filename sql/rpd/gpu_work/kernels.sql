-- Every kernel that ran on a device, in the order in which they were numbered.
--
-- requires: work(row_number, start_ns, end_ns, process_id, agent_id, kernel_id, call_id, is_kernel)
SELECT
    dispatch.start_ns AS start_ns,  -- when the kernel began on the device
    dispatch.end_ns AS end_ns,  -- when it finished
    COALESCE(dispatch.process_id, -1) AS process_id,  -- that launched it, or -1 if unknown
    COALESCE(dispatch.agent_id, -1) AS agent_id,  -- number of the GPU
    COALESCE(dispatch.kernel_id, -1) AS kernel_id,  -- number of what kernel_names.sql gives
    COALESCE(dispatch.call_id, -1) AS event_id  -- number of the launching call, or -1 for none
FROM work AS dispatch
WHERE dispatch.is_kernel
ORDER BY dispatch.row_number
