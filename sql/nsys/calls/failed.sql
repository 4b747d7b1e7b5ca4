-- Those of some CUDA API calls that returned an error, by the numbers of their rows (a JSON array).
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(returnValue)
SELECT
    call._rowid_ AS row_number,  -- its number
    call.returnValue AS error  -- number of the error, above 0
FROM JSON_EACH(:rows) AS wanted
INNER JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call ON wanted.value = call._rowid_
WHERE call.returnValue <> 0
ORDER BY call._rowid_
