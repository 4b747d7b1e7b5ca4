-- Every kernel that ran on a device, in the order in which they were recorded.
--
-- requires: dispatches(row_number, start_ns, end_ns, process_id, agent_id, kernel_id, event_id)
SELECT
    dispatch.start_ns AS start_ns,  -- when the kernel began on the device
    dispatch.end_ns AS end_ns,  -- when it finished
    COALESCE(dispatch.process_id, -1) AS process_id,  -- number of the process
    COALESCE(dispatch.agent_id, -1) AS agent_id,  -- number of the device
    COALESCE(dispatch.kernel_id, -1) AS kernel_id,  -- number of what kernel_names.sql gives
    COALESCE(dispatch.event_id, -1) AS event_id  -- number of what calls/events.sql gives
FROM dispatches AS dispatch
ORDER BY dispatch.row_number
