-- Kernels that ran on devices.
--
-- requires: rocpd_kernel_dispatch(id, pid, agent_id, kernel_id, start, end, event_id)
SELECT
    dispatch.id AS row_number,  -- id of the dispatch
    dispatch.start AS start_ns,  -- start time on the device, in ns on the node's clock
    dispatch."end" AS end_ns,  -- end time, on the same clock
    dispatch.pid AS process_id,  -- rocpd_info_process.id
    dispatch.agent_id AS agent_id,  -- rocpd_info_agent.id of the device
    dispatch.kernel_id AS kernel_id,  -- rocpd_info_kernel_symbol.id
    dispatch.event_id AS event_id  -- rocpd_event.id
FROM rocpd_kernel_dispatch AS dispatch
