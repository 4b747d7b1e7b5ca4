-- Names of the NVTX ranges in a range of rows.
--
-- requires: ranges(row_number, event_type, text, text_id)
SELECT
    named.event_type AS event_type,  -- code of the kind: push/pop or start/end
    COALESCE(named.text_id, -9223372036854775807 - 1) AS text_id,  -- StringIds.id; -2^63 if none
    named.text AS text  -- name, or NULL if the name is registered
FROM ranges AS named
WHERE
    named.row_number BETWEEN $first AND $last
    AND named.event_type IN ($push_pop, $start_end, $nvtxt_push_pop, $nvtxt_start_end)
ORDER BY named.row_number
