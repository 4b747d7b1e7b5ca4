-- What some CUDA API calls are named, by the numbers of their rows (a JSON array).
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(nameId)
-- requires: StringIds(id, value)
SELECT
    call.rowid AS row_number,  -- the number asked for
    string.value AS name  -- with the version of the API behind it
FROM JSON_EACH(:rows) AS wanted
INNER JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call ON wanted.value = call.rowid
INNER JOIN StringIds AS string ON call.nameId = string.id
ORDER BY call.rowid
