-- Ranges of mstx, the tool extension of MindStudio.
--
-- requires: MSTX_EVENTS(startNs, endNs, eventType, globalTid, message)
SELECT
    CAST(entry.startNs AS INTEGER) AS start_ns,  -- start of the range, in ns of UTC
    CAST(entry.endNs AS INTEGER) AS end_ns,  -- end of the range
    COALESCE(entry.globalTid, -1) AS global_tid,  -- process id in the high 32 bits, then thread id
    COALESCE(entry.message, -1) AS name_id,  -- STRING_IDS.id of the message
    entry.eventType AS kind  -- 1 push/pop, 2 start/end
FROM MSTX_EVENTS AS entry
WHERE entry.eventType IN (1, 2)
ORDER BY entry.startNs, entry.endNs, entry.message
