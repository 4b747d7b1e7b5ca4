-- NVTX ranges and marks: each is named by its text or by a registered string.
--
-- requires: NVTX_EVENTS(start, end, eventType, globalTid, endGlobalTid, text, textId)
SELECT
    named._rowid_ AS row_number,
    named.start AS start_ns,
    named."end" AS end_ns,
    named.eventType AS event_type,
    named.globalTid AS thread,
    named.endGlobalTid AS end_thread,
    named.text AS text,
    named.textId AS text_id
FROM NVTX_EVENTS AS named
