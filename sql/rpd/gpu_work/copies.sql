-- Every copy and fill, in the order in which they were numbered.
--
-- requires: work(row_number, start_ns, end_ns, process_id, agent_id, call_id, is_kernel)
SELECT
    copied.start_ns AS start_ns,  -- when it began
    copied.end_ns AS end_ns,  -- when it finished
    COALESCE(copied.process_id, -1) AS process_id,  -- that launched it; -1 unknown
    COALESCE(copied.agent_id, -1) AS to_agent_id,  -- number of the GPU that ran it
    -1 AS from_agent_id,  -- not recorded
    COALESCE(copied.call_id, -1) AS event_id  -- number of the launching call; -1 none
FROM work AS copied
WHERE NOT copied.is_kernel
ORDER BY copied.row_number
