-- All kernels that ran on devices, in recording order.
--
-- requires: dispatches(row_number, start_ns, end_ns, process_id, agent_id, kernel_id, event_id)
SELECT
    dispatch.start_ns AS start_ns,  -- start time on the device
    dispatch.end_ns AS end_ns,  -- end time
    COALESCE(dispatch.process_id, -1) AS process_id,  -- id of the process
    COALESCE(dispatch.agent_id, -1) AS agent_id,  -- agent id of the device
    COALESCE(dispatch.kernel_id, -1) AS kernel_id,  -- id of a name in kernel_names.sql
    COALESCE(dispatch.event_id, -1) AS event_id  -- id of an event in calls/events.sql
FROM dispatches AS dispatch
ORDER BY dispatch.row_number
