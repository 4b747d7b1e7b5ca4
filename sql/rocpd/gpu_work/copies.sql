-- Every copy, in the order in which they were recorded.
--
-- requires: copies(row_number, start_ns, end_ns, process_id, to_agent_id, from_agent_id, event_id)
SELECT
    copied.start_ns AS start_ns,  -- when it began
    copied.end_ns AS end_ns,  -- when it finished
    COALESCE(copied.process_id, -1) AS process_id,  -- number of the process
    COALESCE(copied.to_agent_id, -1) AS to_agent_id,  -- number of where it went
    COALESCE(copied.from_agent_id, -1) AS from_agent_id,  -- number of where it came from
    COALESCE(copied.event_id, -1) AS event_id  -- number of what calls/events.sql gives
FROM copies AS copied
ORDER BY copied.row_number
