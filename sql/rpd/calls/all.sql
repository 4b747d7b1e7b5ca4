-- Every call of an API by a host, and every range, in the order in which they were numbered.
--
-- requires: rocpd_api(id, pid, tid, start, end, apiName_id, args_id)
SELECT
    call.id AS call_id,  -- its number
    call.start AS start_ns,  -- when the host entered it, or opened the range, ns of the node's clock
    call."end" AS end_ns,  -- when it returned, or closed the range
    COALESCE(call.pid, -1) AS pid,  -- process
    COALESCE(call.tid, -1) AS tid,  -- thread
    COALESCE(call.apiName_id, -1) AS name_id,  -- number of the function's name
    COALESCE(call.args_id, -1) AS text_id  -- number of the arguments, or of a range's text
FROM rocpd_api AS call
ORDER BY call.id
