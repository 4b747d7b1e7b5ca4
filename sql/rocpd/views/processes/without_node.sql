-- Processes, without their nodes.
--
-- requires: rocpd_info_process(id, pid)
SELECT
    process.id AS id,  -- its number
    process.pid AS pid,  -- the operating system's
    NULL AS node_id  -- not recorded
FROM rocpd_info_process AS process
