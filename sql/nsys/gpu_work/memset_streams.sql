-- Streams of all memsets, in the order of memsets.sql.
--
-- requires: CUPTI_ACTIVITY_KIND_MEMSET(start, end, streamId)
SELECT
    memset.start AS start_ns,  -- start time on the device
    memset."end" AS end_ns,  -- end time
    COALESCE(memset.streamId, -1) AS stream_id  -- stream number, as numbered in the process
FROM CUPTI_ACTIVITY_KIND_MEMSET AS memset
ORDER BY memset._rowid_
