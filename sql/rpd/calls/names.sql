-- The names of functions.
--
-- requires: rocpd_api(apiName_id)
-- requires: rocpd_string(id, string)
SELECT
    named.id AS name_id,  -- its number
    named.string AS name  -- for example hipLaunchKernel, or UserMarker of a range
FROM rocpd_string AS named
WHERE named.id IN (SELECT call.apiName_id FROM rocpd_api AS call)
ORDER BY named.id
