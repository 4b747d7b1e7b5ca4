-- The most frequent names of NVTX ranges, in exports without registered strings.
--
-- requires: NVTX_EVENTS(eventType, text)
SELECT
    named.text AS text,  -- name of the range
    COUNT(*) AS occurrences  -- how often it was opened
FROM NVTX_EVENTS AS named
WHERE named.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
GROUP BY named.text
ORDER BY occurrences DESC, named.text ASC
LIMIT :most
