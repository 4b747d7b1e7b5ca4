-- One CUDA API call that may have launched work, if the export contains one.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(correlationId)
SELECT call.correlationId AS correlation_id  -- correlation id of the first call
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE call.correlationId IS NOT NULL
ORDER BY call._rowid_
LIMIT 1
