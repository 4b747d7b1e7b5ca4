-- Every call of a host, and every range, in the order in which they were numbered.
--
-- A mark of ROCTx, which has no length, is left out.
--
-- requires: rocpd_api(id, pid, tid, start, end, apiName_id)
-- requires: rocpd_string(id, string)
SELECT
    call.start AS start_ns,  -- when the host entered it, or opened the range, ns of the node's clock
    call."end" AS end_ns,  -- when it returned, or closed the range
    COALESCE(call.pid, -1) AS process_id,  -- process
    COALESCE(call.tid, -1) AS thread_id,  -- thread
    COALESCE(call.apiName_id, -1) AS name_id,  -- number of what names.sql gives
    call.id AS event_id  -- number of what events.sql gives
FROM rocpd_api AS call
LEFT JOIN rocpd_string AS named ON call.apiName_id = named.id
WHERE
    call."end" > call.start
    OR named.string IS NULL
    OR (named.string != 'UserMarker' AND named.string NOT GLOB 'roctx*')
ORDER BY call.id
