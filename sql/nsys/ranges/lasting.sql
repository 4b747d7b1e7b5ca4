-- NVTX ranges of the given threads (a JSON array) with a minimum duration.
--
-- Only ranges that overlap the given time interval are returned. Ranges that were open at the end
-- of the capture are left out. The columns are the same as in named.sql.
--
-- requires: ranges(row_number, start_ns, end_ns, event_type, thread, end_thread, text, text_id)
SELECT
    lasting.start_ns AS start_ns,  -- start of the range
    lasting.end_ns AS end_ns,  -- end of the range
    lasting.event_type AS event_type,  -- code of the kind: push/pop or start/end
    COALESCE(lasting.thread, -1) AS thread,  -- thread that opened the range
    COALESCE(lasting.end_thread, -1) AS end_thread,  -- thread that ended a start/end range
    COALESCE(lasting.text_id, -9223372036854775807 - 1) AS text_id,  -- StringIds.id; -2^63 if none
    lasting.text AS text  -- name, or NULL if the name is registered
FROM ranges AS lasting
WHERE
    lasting.row_number BETWEEN $first AND $last
    -- If times are damaged, their difference may not fit in 64 bits.
    AND CAST(lasting.end_ns AS HUGEINT) - lasting.start_ns >= $shortest
    AND lasting.thread IN (
        SELECT CAST(wanted.value AS BIGINT) FROM JSON_EACH($threads) AS wanted
    )
    AND lasting.start_ns < $until
    AND lasting.end_ns > $since
    AND lasting.event_type IN ($push_pop, $start_end, $nvtxt_push_pop, $nvtxt_start_end)
ORDER BY lasting.row_number
