-- NVTX ranges and marks in exports in which every name is a registered string.
--
-- requires: NVTX_EVENTS(start, end, eventType, globalTid, textId)
SELECT
    named._rowid_ AS row_number,  -- row number
    named.start AS start_ns,  -- start of the range or mark, in ns since the session start
    named."end" AS end_ns,  -- end of the range on the same clock, or NULL
    named.eventType AS event_type,  -- ENUM_NSYS_EVENT_TYPE.id: push/pop, start/end, mark and others
    named.globalTid AS thread,  -- thread that opened the range: host id, process id and thread id
    NULL AS end_thread,  -- not read
    NULL AS text,  -- not recorded
    named.textId AS text_id  -- StringIds.id of the name
FROM NVTX_EVENTS AS named
