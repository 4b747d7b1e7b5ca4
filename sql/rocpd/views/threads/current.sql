-- Threads.
--
-- requires: rocpd_info_thread(id, tid, pid, name)
SELECT
    thread.id AS id,  -- id
    thread.tid AS tid,  -- thread id in the operating system
    thread.pid AS process_id,  -- rocpd_info_process.id
    thread.name AS name  -- name, or NULL if none was recorded
FROM rocpd_info_thread AS thread
