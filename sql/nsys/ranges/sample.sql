-- Names of ranges in some rows.
--
-- requires: ranges(row_number, event_type, text, text_id)
-- requires: strings(id, value)
SELECT COALESCE(named.text, name.value) AS text  -- name of the range
FROM ranges AS named
LEFT JOIN strings AS name ON named.text IS NULL AND named.text_id = name.id
WHERE
    named.row_number BETWEEN :first AND :last
    AND named.event_type IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
ORDER BY named.row_number
