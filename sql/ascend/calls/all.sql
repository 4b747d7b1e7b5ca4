-- Calls of the CANN libraries.
--
-- requires: CANN_API(startNs, endNs, globalTid, connectionId, name)
SELECT
    CAST(call.startNs AS INTEGER) AS start_ns,  -- start of the call, in ns of UTC
    CAST(call.endNs AS INTEGER) AS end_ns,  -- end of the call
    COALESCE(call.globalTid, -1) AS global_tid,  -- process id in the high 32 bits, then thread id
    COALESCE(call.connectionId, -1) AS connection_id,  -- id shared with the work of the call
    COALESCE(call.name, -1) AS name_id  -- STRING_IDS.id of the function's name
FROM CANN_API AS call
ORDER BY call.startNs, call.connectionId
