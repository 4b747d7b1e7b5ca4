-- The first and the last row of the table of NVTX ranges, if it has rows.
--
-- requires: NVTX_EVENTS(eventType)
SELECT
    (SELECT MIN(other.rowid) FROM NVTX_EVENTS AS other) AS first_row,  -- its number
    named.rowid AS last_row,  -- its number
    named.eventType AS event_type  -- what the last one is
FROM NVTX_EVENTS AS named
ORDER BY named.rowid DESC
LIMIT 1
