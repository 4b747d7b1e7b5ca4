-- All copies, in recording order.
--
-- requires: copies(row_number, start_ns, end_ns, process_id, to_agent_id, from_agent_id, event_id)
SELECT
    copied.start_ns AS start_ns,  -- start time
    copied.end_ns AS end_ns,  -- end time
    COALESCE(copied.process_id, -1) AS process_id,  -- id of the process
    COALESCE(copied.to_agent_id, -1) AS to_agent_id,  -- agent id of the destination
    COALESCE(copied.from_agent_id, -1) AS from_agent_id,  -- agent id of the source
    COALESCE(copied.event_id, -1) AS event_id  -- id of an event in calls/events.sql
FROM copies AS copied
ORDER BY copied.row_number
