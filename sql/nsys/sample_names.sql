-- Names of the ranges in some rows, to tell which naming conventions a profile follows.
--
-- requires: NVTX_EVENTS(eventType, text, textId)
-- requires: StringIds(id, value)
SELECT COALESCE(named.text, name.value) AS text  -- name of the range
FROM NVTX_EVENTS AS named
LEFT JOIN StringIds AS name ON named.text IS NULL AND named.textId = name.id
WHERE
    named.rowid BETWEEN :first AND :last
    AND named.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
ORDER BY named.rowid
