-- Streams of all memory copies, in the order of copies.sql.
--
-- requires: CUPTI_ACTIVITY_KIND_MEMCPY(start, end, streamId)
SELECT
    copy.start AS start_ns,  -- start time on the device
    copy."end" AS end_ns,  -- end time
    COALESCE(copy.streamId, -1) AS stream_id  -- stream number, as numbered in the process
FROM CUPTI_ACTIVITY_KIND_MEMCPY AS copy
ORDER BY copy._rowid_
