-- All CUDA API calls in a range of rows, in the order of the export.
--
-- Two calls can have the same correlation id: a runtime API call, and the driver API call that it
-- makes. A call without a correlation id (-2^40) did not launch any work. All rows are included, so
-- the position of a row determines its row number.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start, end, globalTid, correlationId)
SELECT
    call.start AS start_ns,  -- start of the call
    call."end" AS end_ns,  -- end of the call
    COALESCE(call.globalTid, -1) AS thread,  -- host id, process id and thread id
    COALESCE(call.correlationId, -1099511627776) AS correlation_id  -- unique within a process only
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE call._rowid_ BETWEEN $first AND $last
ORDER BY call._rowid_
