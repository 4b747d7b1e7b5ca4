-- Function names for the given ids (a JSON array). ROCTx ranges are named UserMarker.
--
-- requires: rocpd_string(id, string)
SELECT
    named.id AS name_id,  -- id
    CASE named.string
        WHEN 'UserMarker' THEN 'roctxRangePush'
        ELSE named.string
    END AS name  -- for example hipLaunchKernel
FROM JSON_EACH($ids) AS wanted
INNER JOIN rocpd_string AS named ON wanted.value = named.id
ORDER BY named.id
