-- Every NVTX range of some threads (a JSON array) that lasts so long and touches a time.
--
-- Those that were open when the capture ended are not among them.
--
-- requires: NVTX_EVENTS(start, end, eventType, globalTid, text, textId)
-- requires: StringIds(id, value)
SELECT
    lasting.start AS start_ns,  -- when the range was pushed or started
    lasting."end" AS end_ns,  -- when it was popped or ended
    COALESCE(lasting.globalTid, -1) AS thread,  -- thread that opened it
    COALESCE(lasting.text, string.value) AS name  -- its name
FROM NVTX_EVENTS AS lasting
LEFT JOIN StringIds AS string ON lasting.textId = string.id
WHERE
    lasting.rowid BETWEEN :first AND :last
    AND lasting."end" - lasting.start >= :shortest
    AND lasting.globalTid IN (SELECT thread.value FROM JSON_EACH(:threads) AS thread)
    AND lasting.start < :until
    AND lasting."end" > :since
    AND lasting.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
ORDER BY lasting.rowid
