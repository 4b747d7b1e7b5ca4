-- Some CUDA API calls, by the numbers of their rows (a JSON array), with the columns of all.sql.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start, end, globalTid, correlationId)
SELECT
    call.start AS start_ns,  -- when the host entered the call
    call."end" AS end_ns,  -- when it returned
    COALESCE(call.globalTid, -1) AS thread,  -- host id, process id and thread id
    call.correlationId AS correlation_id  -- unique within a process only
FROM JSON_EACH(:rows) AS wanted
INNER JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call ON wanted.value = call._rowid_
ORDER BY call._rowid_
