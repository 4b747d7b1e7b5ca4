-- Threads.
--
-- requires: rocpd_info_thread(id, tid, pid, name)
SELECT
    thread.id AS id,  -- its number
    thread.tid AS tid,  -- the operating system's
    thread.pid AS process_id,  -- rocpd_info_process.id
    thread.name AS name  -- NULL where the tool records none
FROM rocpd_info_thread AS thread
