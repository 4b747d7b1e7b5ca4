-- When the last CUDA API call that can have launched something returned.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start, end, correlationId)
SELECT call."end" AS end_ns  -- the latest
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE
    call.correlationId IS NOT NULL
    AND call."end" BETWEEN call.start AND :latest
    AND call.start BETWEEN -:latest AND :latest
ORDER BY call."end" DESC
LIMIT 1
