-- Every NVTX range of some threads (a JSON array) that lasts so long and touches a time.
--
-- Those that were open when the capture ended are not among them.
--
-- requires: ranges(row_number, start_ns, end_ns, event_type, thread, text, text_id)
-- requires: strings(id, value)
SELECT
    lasting.start_ns AS start_ns,  -- when the range was pushed or started
    lasting.end_ns AS end_ns,  -- when it was popped or ended
    COALESCE(lasting.thread, -1) AS thread,  -- thread that opened it
    COALESCE(lasting.text, string.value) AS name  -- its name
FROM ranges AS lasting
LEFT JOIN strings AS string ON lasting.text_id = string.id
WHERE
    lasting.row_number BETWEEN :first AND :last
    AND lasting.end_ns - lasting.start_ns >= :shortest
    AND lasting.thread IN (SELECT thread.value FROM JSON_EACH(:threads) AS thread)
    AND lasting.start_ns < :until
    AND lasting.end_ns > :since
    AND lasting.event_type IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
ORDER BY lasting.row_number
