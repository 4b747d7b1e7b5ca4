-- Every launch of a CUDA graph; the ids of the names of such calls are given as a JSON array.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(globalTid, correlationId, nameId)
SELECT
    call.globalTid >> 24 AS process,  -- host id and process id
    call.correlationId AS correlation_id  -- shared with what the graph ran
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE
    call.correlationId IS NOT NULL
    AND call.globalTid IS NOT NULL
    AND call.nameId IN (SELECT wanted.value FROM JSON_EACH(:name_ids) AS wanted)
ORDER BY call._rowid_
