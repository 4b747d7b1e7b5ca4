-- Every NVTX range in some rows whose name may follow a naming convention, in the export's order.
--
-- Names are registered strings, of which strings_like.sql has found the wanted ones.
-- For exports that hold all names as registered strings.
--
-- requires: NVTX_EVENTS(start, end, eventType, globalTid, textId)
-- requires: StringIds(id)
SELECT
    named.start AS start_ns,  -- when the range was pushed or started
    named."end" AS end_ns,  -- when it was popped or ended; NULL if the capture ended first
    named.eventType AS event_type,  -- push/pop or start/end
    COALESCE(named.globalTid, -1) AS thread,  -- thread that opened it
    -1 AS end_thread,  -- thread that ended a start/end range
    NULL AS text,  -- its name
    named.textId AS text_id  -- or StringIds.id of it
FROM NVTX_EVENTS AS named
WHERE
    named.rowid BETWEEN :first AND :last
    AND named.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
    AND named.textId IN (
        SELECT string.id FROM JSON_EACH(:text_ids) AS wanted
        INNER JOIN StringIds AS string ON wanted.value = string.id
    )
ORDER BY named.rowid
