-- Names of the ranges in some rows, in exports that hold all names as registered strings.
--
-- requires: NVTX_EVENTS(eventType, textId)
-- requires: StringIds(id, value)
SELECT name.value AS text  -- name of the range
FROM NVTX_EVENTS AS named
INNER JOIN StringIds AS name ON named.textId = name.id
WHERE
    named.rowid BETWEEN :first AND :last
    AND named.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
ORDER BY named.rowid
