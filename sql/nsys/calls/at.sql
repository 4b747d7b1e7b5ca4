-- CUDA API calls with the given row numbers (a JSON array).
--
-- requires: calls(row_number, start_ns, end_ns, thread, correlation_id, name_id, error)
SELECT
    call.start_ns AS start_ns,  -- start of the call
    call.end_ns AS end_ns,  -- end of the call
    COALESCE(call.thread, -1) AS thread,  -- host id, process id and thread id
    COALESCE(call.correlation_id, -1099511627776) AS correlation_id,  -- pairs with all.sql
    COALESCE(call.name_id, -1) AS name_id,  -- StringIds.id of the name
    COALESCE(call.error, 0) AS error  -- error number, or 0 if there was no error
FROM JSON_EACH($rows) AS wanted
INNER JOIN calls AS call ON CAST(wanted.value AS BIGINT) = call.row_number
ORDER BY call.row_number
