-- Those of some CUDA API calls that have one of some names; both are numbers in a JSON array.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(nameId)
SELECT
    call._rowid_ AS row_number,  -- its number
    call.nameId AS name_id  -- which call
FROM JSON_EACH(:rows) AS wanted
INNER JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call ON wanted.value = call._rowid_
WHERE call.nameId IN (SELECT named.value FROM JSON_EACH(:name_ids) AS named)
ORDER BY call._rowid_
