-- The first and the last row of the table of NVTX ranges, if it has rows.
--
-- requires: NVTX_EVENTS(eventType)
SELECT
    (SELECT MIN(other._rowid_) FROM NVTX_EVENTS AS other) AS first_row,  -- id
    named._rowid_ AS last_row,  -- id
    named.eventType AS event_type  -- event type of the last event
FROM NVTX_EVENTS AS named
ORDER BY named._rowid_ DESC
LIMIT 1
