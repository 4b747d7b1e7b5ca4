-- The most frequent names of NVTX ranges, to show what an unknown profile holds.
--
-- requires: NVTX_EVENTS(eventType, text, textId)
-- requires: StringIds(id, value)
SELECT
    COALESCE(named.text, name.value) AS text,  -- name of the range
    COUNT(*) AS occurrences  -- how often it was opened
FROM NVTX_EVENTS AS named
LEFT JOIN StringIds AS name ON named.text IS NULL AND named.textId = name.id
WHERE named.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
GROUP BY COALESCE(named.text, name.value)
ORDER BY occurrences DESC, COALESCE(named.text, name.value) ASC
LIMIT :most
