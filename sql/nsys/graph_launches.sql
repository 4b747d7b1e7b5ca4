-- Every launch of a CUDA graph.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(globalTid, correlationId, nameId)
-- requires: StringIds(id, value)
SELECT
    call.globalTid >> 24 AS process,  -- host id and process id
    call.correlationId AS correlation_id  -- shared with what the graph ran
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE
    call.correlationId IS NOT NULL
    AND call.globalTid IS NOT NULL
    AND call.nameId IN (
        SELECT string.id FROM StringIds AS string
        WHERE string.value GLOB 'cudaGraphLaunch*' OR string.value GLOB 'cuGraphLaunch*'
    )
ORDER BY call.rowid
