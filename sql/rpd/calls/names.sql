-- The names of functions; that of a range of ROCTx, which the tracer calls UserMarker.
--
-- requires: rocpd_api(apiName_id)
-- requires: rocpd_string(id, string)
SELECT
    named.id AS name_id,  -- its number
    CASE named.string
        WHEN 'UserMarker' THEN 'roctxRangePush'
        ELSE named.string
    END AS name  -- for example hipLaunchKernel
FROM rocpd_string AS named
WHERE named.id IN (SELECT call.apiName_id FROM rocpd_api AS call)
ORDER BY named.id
