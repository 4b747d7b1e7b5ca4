-- The most frequent names of NVTX ranges, in exports without registered strings.
--
-- requires: NVTX_EVENTS(eventType, text)
SELECT
    range.text AS text,  -- name of the range
    COUNT(*) AS occurrences  -- how often it was opened
FROM NVTX_EVENTS AS range
WHERE range.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
GROUP BY range.text
ORDER BY occurrences DESC, range.text ASC
LIMIT :most
