-- How far the rows of the NVTX table go.
--
-- requires: NVTX_EVENTS(eventType)
SELECT named.rowid AS last_row  -- the last row's number
FROM NVTX_EVENTS AS named
WHERE named.eventType IS NOT NULL
ORDER BY named.rowid DESC
LIMIT 1
