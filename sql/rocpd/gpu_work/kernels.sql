-- Every kernel that ran on a device, by start.
--
-- requires: dispatches(row_number, start_ns, end_ns, process_id, agent_id, kernel_id, event_id)
-- requires: events(id, stack_id, correlation_id)
SELECT
    dispatch.start_ns AS start_ns,  -- when the kernel began on the device
    dispatch.end_ns AS end_ns,  -- when it finished
    COALESCE(dispatch.process_id, -1) AS process_id,  -- number of the process
    COALESCE(dispatch.agent_id, -1) AS agent_id,  -- number of the device
    COALESCE(dispatch.kernel_id, -1) AS kernel_id,  -- number of what kernel_names.sql gives
    COALESCE(event.stack_id, 0) AS stack_id,  -- that of the launching call; 0 none
    COALESCE(event.correlation_id, 0) AS correlation_id  -- by the tool; 0 none
FROM dispatches AS dispatch
LEFT JOIN events AS event ON dispatch.event_id = event.id
ORDER BY dispatch.start_ns, dispatch.row_number
