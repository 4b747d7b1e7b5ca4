-- Names of the ranges in some rows, in exports without registered strings.
--
-- requires: NVTX_EVENTS(eventType, text)
SELECT named.text AS text  -- name of the range
FROM NVTX_EVENTS AS named
WHERE
    named.rowid BETWEEN :first AND :last
    AND named.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
ORDER BY named.rowid
