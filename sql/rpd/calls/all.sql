-- All host calls and ranges, sorted by id.
--
-- ROCTx marks are left out, because they have no duration.
--
-- requires: rocpd_api(id, pid, tid, start, end, apiName_id)
-- requires: rocpd_string(id, string)
SELECT
    call.start AS start_ns,  -- start of the call or range, in ns on the node's clock
    call."end" AS end_ns,  -- end of the call or range
    COALESCE(call.pid, -1) AS process_id,  -- id of the process
    COALESCE(call.tid, -1) AS thread_id,  -- id of the thread
    COALESCE(call.apiName_id, -1) AS name_id,  -- id of a name in names.sql
    call.id AS event_id  -- id of an event in events.sql
FROM rocpd_api AS call
LEFT JOIN rocpd_string AS named ON call.apiName_id = named.id
WHERE
    call."end" > call.start
    OR named.string IS NULL
    OR (named.string != 'UserMarker' AND named.string NOT GLOB 'roctx*')
ORDER BY call.id
