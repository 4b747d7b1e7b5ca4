-- NVTX ranges and marks of exports that do not record which thread ended a range.
--
-- requires: NVTX_EVENTS(start, end, eventType, globalTid, text, textId)
SELECT
    named._rowid_ AS row_number,
    named.start AS start_ns,
    named."end" AS end_ns,
    named.eventType AS event_type,
    named.globalTid AS thread,
    NULL AS end_thread,  -- not recorded
    named.text AS text,
    named.textId AS text_id
FROM NVTX_EVENTS AS named
