-- Processes, without their command lines and environments, which may hold secrets.
--
-- requires: rocpd_info_process(id, pid, nid)
SELECT
    process.id AS id,  -- its number
    process.pid AS pid,  -- the operating system's
    process.nid AS node_id  -- rocpd_info_node.id
FROM rocpd_info_process AS process
