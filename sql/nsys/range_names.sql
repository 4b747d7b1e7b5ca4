-- The most frequent names of NVTX ranges, to show what an unknown profile holds.
--
-- requires: NVTX_EVENTS(eventType, text, textId)
-- requires: StringIds(id, value)
SELECT
    COALESCE(range.text, name.value) AS text,  -- name of the range
    COUNT(*) AS occurrences  -- how often it was opened
FROM NVTX_EVENTS AS range
LEFT JOIN StringIds AS name ON range.text IS NULL AND range.textId = name.id
WHERE range.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
GROUP BY text
ORDER BY occurrences DESC, text ASC
LIMIT :most
