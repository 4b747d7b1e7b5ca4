-- One call that fills memory, if the export holds any.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(nameId)
-- requires: StringIds(id, value)
SELECT call.nameId AS name_id  -- which call
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE
    call.nameId IN (
        SELECT string.id FROM StringIds AS string
        WHERE string.value GLOB 'cudaMemset*' OR string.value GLOB 'cuMemset*'
    )
ORDER BY call.rowid
LIMIT 1
