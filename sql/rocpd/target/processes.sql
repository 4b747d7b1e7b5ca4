-- The recorded processes.
--
-- requires: processes(id, pid, node_id)
SELECT
    process.id AS process_id,  -- id
    COALESCE(process.pid, -1) AS pid,  -- process id in the operating system
    COALESCE(process.node_id, -1) AS node_id  -- id of the node
FROM processes AS process
ORDER BY process.id
