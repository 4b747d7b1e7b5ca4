-- The threads that were recorded.
--
-- requires: threads(id, tid, process_id, name)
SELECT
    thread.id AS thread_id,  -- its number
    COALESCE(thread.tid, -1) AS tid,  -- the operating system's
    COALESCE(thread.process_id, -1) AS process_id,  -- number of its process
    thread.name AS name  -- NULL where it has none
FROM threads AS thread
ORDER BY thread.id
