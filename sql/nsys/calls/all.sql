-- Every CUDA API call; some rows, in the order the export holds them.
--
-- One call can appear twice under one correlation id, as runtime API and as driver API. Without one
-- (-2^40) it launched nothing. No row is left out, so that a row's place gives its number.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start, end, globalTid, correlationId)
SELECT
    call.start AS start_ns,  -- when the host entered the call
    call."end" AS end_ns,  -- when it returned
    COALESCE(call.globalTid, -1) AS thread,  -- host id, process id and thread id
    COALESCE(call.correlationId, -1099511627776) AS correlation_id  -- unique within a process only
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE call._rowid_ BETWEEN $first AND $last
ORDER BY call._rowid_
