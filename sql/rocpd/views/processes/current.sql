-- Processes, without their command lines and environments, which may contain secrets.
--
-- requires: rocpd_info_process(id, pid, nid)
SELECT
    process.id AS id,  -- id
    process.pid AS pid,  -- process id in the operating system
    process.nid AS node_id  -- rocpd_info_node.id
FROM rocpd_info_process AS process
