-- ROCTx range texts, with their call ids.
--
-- requires: rocpd_api(id, apiName_id, args_id)
-- requires: rocpd_string(id, string)
-- requires: arguments(id, text)
SELECT
    call.id AS event_id,  -- id of the call
    CAST(given.text AS TEXT) AS text  -- text of the range
FROM rocpd_api AS call
INNER JOIN rocpd_string AS named ON call.apiName_id = named.id
INNER JOIN arguments AS given ON call.args_id = given.id
WHERE (named.string = 'UserMarker' OR named.string GLOB 'roctx*') AND CAST(given.text AS TEXT) != ''
ORDER BY call.id
