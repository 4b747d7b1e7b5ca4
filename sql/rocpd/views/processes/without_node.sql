-- Processes, without nodes.
--
-- requires: rocpd_info_process(id, pid)
SELECT
    process.id AS id,  -- id
    process.pid AS pid,  -- process id in the operating system
    NULL AS node_id  -- not recorded
FROM rocpd_info_process AS process
