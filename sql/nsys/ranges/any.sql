-- One NVTX range with any name, if the export contains one.
--
-- requires: NVTX_EVENTS(eventType)
SELECT named.eventType AS event_type  -- code of the kind: push/pop or start/end
FROM NVTX_EVENTS AS named
WHERE named.eventType IN ($push_pop, $start_end, $nvtxt_push_pop, $nvtxt_start_end)
ORDER BY named._rowid_
LIMIT 1
