-- CUDA API calls of some names, whose ids are given as a JSON array; no more than some.
--
-- Every call is looked through.
--
-- requires: calls(row_number, thread, correlation_id, name_id)
SELECT
    call.row_number AS row_number,  -- id
    COALESCE(call.thread, -1) AS thread,  -- host id, process id and thread id
    COALESCE(call.correlation_id, -1099511627776) AS correlation_id  -- -2^40: it launched nothing
FROM calls AS call
WHERE
    call.name_id IN (
        SELECT CAST(wanted.value AS BIGINT) FROM JSON_EACH($name_ids) AS wanted
    )
ORDER BY call.row_number
LIMIT $most
