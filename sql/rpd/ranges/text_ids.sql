-- Which of some calls (a JSON array of their numbers) are ranges of ROCTx, and have a text.
--
-- requires: rocpd_api(id, apiName_id, args_id)
-- requires: rocpd_string(id, string)
SELECT
    call.id AS event_id,  -- number of the call
    call.args_id AS text_id  -- number of what texts.sql gives
FROM JSON_EACH(:ids) AS wanted
INNER JOIN rocpd_api AS call ON wanted.value = call.id
INNER JOIN rocpd_string AS named ON call.apiName_id = named.id
WHERE call.args_id IS NOT NULL AND (named.string = 'UserMarker' OR named.string GLOB 'roctx*')
ORDER BY call.id
