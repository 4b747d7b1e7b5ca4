-- Every CUDA API call that can have launched something, in the order the export holds them.
--
-- One call can appear twice under one correlation id, as runtime API and as driver API.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start, end, globalTid, correlationId)
SELECT
    call.start AS start_ns,  -- when the host entered the call
    call."end" AS end_ns,  -- when it returned
    COALESCE(call.globalTid, -1) AS thread,  -- host id, process id and thread id
    call.correlationId AS correlation_id  -- unique within a process only
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE call.correlationId IS NOT NULL
ORDER BY call.rowid
