-- CUDA API calls with the given name ids (a JSON array), up to a maximum number of calls.
--
-- The query scans all calls.
--
-- requires: calls(row_number, thread, correlation_id, name_id)
SELECT
    call.row_number AS row_number,  -- row number
    COALESCE(call.thread, -1) AS thread,  -- host id, process id and thread id
    COALESCE(call.correlation_id, -1099511627776) AS correlation_id  -- -2^40 if it launched nothing
FROM calls AS call
WHERE
    call.name_id IN (
        SELECT CAST(wanted.value AS BIGINT) FROM JSON_EACH($name_ids) AS wanted
    )
ORDER BY call.row_number
LIMIT $most
