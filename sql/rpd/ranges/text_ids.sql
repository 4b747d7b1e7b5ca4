-- The numbers of the texts of ranges of ROCTx.
--
-- requires: rocpd_api(apiName_id, args_id)
-- requires: rocpd_string(id, string)
SELECT DISTINCT
    call.args_id AS event_id,  -- its number
    call.args_id AS text_id  -- number of what texts.sql gives
FROM rocpd_api AS call
INNER JOIN rocpd_string AS named ON call.apiName_id = named.id
WHERE call.args_id IS NOT NULL AND (named.string = 'UserMarker' OR named.string GLOB 'roctx*')
ORDER BY call.args_id
