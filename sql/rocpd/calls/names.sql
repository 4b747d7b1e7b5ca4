-- Function names for the given ids (a JSON array).
--
-- requires: rocpd_string(id, string)
SELECT
    named.id AS name_id,  -- id
    named.string AS name  -- for example hipLaunchKernel
FROM JSON_EACH($ids) AS wanted
INNER JOIN rocpd_string AS named ON wanted.value = named.id
ORDER BY named.id
