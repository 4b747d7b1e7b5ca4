-- The most frequent names of NVTX ranges, in exports that hold all names as registered strings.
--
-- requires: NVTX_EVENTS(eventType, textId)
-- requires: StringIds(id, value)
SELECT
    name.value AS text,  -- name of the range
    COUNT(*) AS occurrences  -- how often it was opened
FROM NVTX_EVENTS AS named
INNER JOIN StringIds AS name ON named.textId = name.id
WHERE named.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
GROUP BY name.value
ORDER BY occurrences DESC, name.value ASC
LIMIT :most
