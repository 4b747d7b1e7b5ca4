-- Streams of all memory copies, in the order of copies.sql.
--
-- requires: CUPTI_ACTIVITY_KIND_MEMCPY(start, end, streamId)
SELECT
    copy.start AS start_ns,  -- when it began on the device
    copy."end" AS end_ns,  -- when it ended
    COALESCE(copy.streamId, -1) AS stream_id  -- stream number, as numbered in the process
FROM CUPTI_ACTIVITY_KIND_MEMCPY AS copy
ORDER BY copy._rowid_
