-- The processes that made CUDA API calls.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(globalTid, correlationId)
SELECT DISTINCT COALESCE(call.globalTid, -1) >> 24 AS process  -- host id and process id
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE call.correlationId IS NOT NULL
ORDER BY process
