-- NVTX ranges and marks of exports without registered strings.
--
-- requires: NVTX_EVENTS(start, end, eventType, globalTid, text)
SELECT
    named._rowid_ AS row_number,
    named.start AS start_ns,
    named."end" AS end_ns,
    named.eventType AS event_type,
    named.globalTid AS thread,
    NULL AS end_thread,  -- not read
    named.text AS text,
    NULL AS text_id  -- not recorded
FROM NVTX_EVENTS AS named
