-- CUDA API calls with some names, up to a maximum number. The ids of the names are a JSON array.
--
-- All calls are scanned.
--
-- requires: calls(row_number, thread, correlation_id, name_id)
SELECT
    call.row_number AS row_number,  -- id
    COALESCE(call.thread, -1) AS thread,  -- host id, process id and thread id
    COALESCE(call.correlation_id, -1099511627776) AS correlation_id  -- -2^40 if it launched nothing
FROM calls AS call
WHERE
    call.name_id IN (
        SELECT CAST(wanted.value AS BIGINT) FROM JSON_EACH($name_ids) AS wanted
    )
ORDER BY call.row_number
LIMIT $most
