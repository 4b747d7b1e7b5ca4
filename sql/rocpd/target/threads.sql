-- The recorded threads.
--
-- requires: threads(id, tid, process_id, name)
SELECT
    thread.id AS thread_id,  -- id
    COALESCE(thread.tid, -1) AS tid,  -- thread id in the operating system
    COALESCE(thread.process_id, -1) AS process_id,  -- id of the process
    thread.name AS name  -- name, or NULL if the thread has none
FROM threads AS thread
ORDER BY thread.id
