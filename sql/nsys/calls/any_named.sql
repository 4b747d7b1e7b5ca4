-- One CUDA API call of some names, if the export holds any; their ids are given as a JSON array.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(nameId)
SELECT call.nameId AS name_id  -- which call
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE call.nameId IN (SELECT wanted.value FROM JSON_EACH(:name_ids) AS wanted)
ORDER BY call._rowid_
LIMIT 1
