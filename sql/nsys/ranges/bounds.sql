-- First and last row numbers of the NVTX range table. If the table is empty, there are no rows.
--
-- requires: NVTX_EVENTS(eventType)
SELECT
    (SELECT MIN(other._rowid_) FROM NVTX_EVENTS AS other) AS first_row,  -- row id
    named._rowid_ AS last_row,  -- row id
    named.eventType AS event_type  -- event type of the last event
FROM NVTX_EVENTS AS named
ORDER BY named._rowid_ DESC
LIMIT 1
