-- The CUDA API calls whose name contains some letters, by the numbers of their rows.
--
-- Every call is looked through.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(correlationId, nameId)
-- requires: strings(id, value)
SELECT
    call._rowid_ AS row_number,  -- its number
    call.nameId AS name_id  -- which call
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE
    call.correlationId IS NOT NULL
    AND call.nameId IN (
        SELECT string.id
        FROM strings AS string
        WHERE string.value GLOB '*' || :letters || '*'
    )
ORDER BY call._rowid_
