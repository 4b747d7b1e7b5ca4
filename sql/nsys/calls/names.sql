-- What some CUDA API calls are named, by the numbers of their rows (a JSON array).
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(nameId)
-- requires: strings(id, value)
SELECT
    call._rowid_ AS row_number,  -- its number
    string.value AS name  -- with the version of the API behind it
FROM JSON_EACH(:rows) AS wanted
INNER JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call ON wanted.value = call._rowid_
INNER JOIN strings AS string ON call.nameId = string.id
WHERE string.value IS NOT NULL
ORDER BY call._rowid_
