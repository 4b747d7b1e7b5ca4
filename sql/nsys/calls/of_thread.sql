-- The CUDA API calls of one thread; some rows, in the order the export holds them.
--
-- An export holds the calls of a thread together, and a column that is not read saves a quarter of
-- the time. Columns as in all.sql, without the thread.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start, end, globalTid, correlationId)
SELECT
    call.start AS start_ns,  -- when the host entered the call
    call."end" AS end_ns,  -- when it returned
    COALESCE(call.correlationId, -1099511627776) AS correlation_id  -- unique within a process only
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE call._rowid_ BETWEEN :first AND :last AND call.globalTid = :thread
ORDER BY call._rowid_
