-- Threads, without names.
--
-- requires: rocpd_info_thread(id, tid, pid)
SELECT
    thread.id AS id,  -- id
    thread.tid AS tid,  -- thread id in the operating system
    thread.pid AS process_id,  -- rocpd_info_process.id
    NULL AS name  -- not recorded
FROM rocpd_info_thread AS thread
