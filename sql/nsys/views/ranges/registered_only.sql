-- NVTX ranges and marks of exports that hold every name as a registered string.
--
-- requires: NVTX_EVENTS(start, end, eventType, globalTid, textId)
SELECT
    named._rowid_ AS row_number,
    named.start AS start_ns,
    named."end" AS end_ns,
    named.eventType AS event_type,
    named.globalTid AS thread,
    NULL AS end_thread,  -- not read
    NULL AS text,  -- not recorded
    named.textId AS text_id
FROM NVTX_EVENTS AS named
