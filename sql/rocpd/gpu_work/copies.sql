-- Every copy, by start.
--
-- requires: copies(row_number, start_ns, end_ns, process_id, to_agent_id, from_agent_id, event_id)
-- requires: events(id, stack_id, correlation_id)
SELECT
    copied.start_ns AS start_ns,  -- when it began
    copied.end_ns AS end_ns,  -- when it finished
    COALESCE(copied.process_id, -1) AS process_id,  -- number of the process
    COALESCE(copied.to_agent_id, -1) AS to_agent_id,  -- number of where it went
    COALESCE(copied.from_agent_id, -1) AS from_agent_id,  -- number of where it came from
    COALESCE(event.stack_id, 0) AS stack_id,  -- that of the launching call; 0 none
    COALESCE(event.correlation_id, 0) AS correlation_id  -- by the tool; 0 none
FROM copies AS copied
LEFT JOIN events AS event ON copied.event_id = event.id
ORDER BY copied.start_ns, copied.row_number
