-- NVTX ranges whose name may follow a convention, in a range of rows, in the order of the export.
--
-- The query filters the names, so ranges that have other names cost only the table scan. The
-- GLOBs are JSON arrays. DISTINCT makes SQLite parse an array once instead of for every row. GLOBs
-- that start with a letter are tested only if one GLOB for all first letters matches. Two of the
-- other GLOBs are tested directly. The remaining GLOBs are tested only if a GLOB for their common
-- text matches. A name is a text or a registered string. strings/matching.sql finds the registered
-- strings that match, and explains why both files contain the filter.
--
-- requires: ranges(row_number, start_ns, end_ns, event_type, thread, end_thread, text, text_id)
-- requires: strings(id)
WITH
anchored AS (SELECT DISTINCT given.value AS pattern FROM JSON_EACH($anchored) AS given),

floating AS (SELECT DISTINCT given.value AS pattern FROM JSON_EACH($floating) AS given)

SELECT
    named.start_ns AS start_ns,  -- start of the range
    COALESCE(named.end_ns, -9223372036854775807 - 1) AS end_ns,  -- end of the range; -2^63 if open
    named.event_type AS event_type,  -- code of the kind: push/pop or start/end
    COALESCE(named.thread, -1) AS thread,  -- thread that opened the range
    COALESCE(named.end_thread, -1) AS end_thread,  -- thread that ended a start/end range
    COALESCE(named.text_id, -9223372036854775807 - 1) AS text_id,  -- StringIds.id; -2^63 if none
    named.text AS text  -- name, or NULL if the name is registered
FROM ranges AS named
WHERE
    named.row_number BETWEEN $first AND $last
    -- This condition rejects nearly all names. It is tested first because it has no subqueries.
    AND (
        named.text GLOB $first_letters
        OR named.text GLOB $floating_first
        OR named.text GLOB $floating_second
        OR named.text GLOB $floating_guard
        OR (named.text IS NULL AND $some_strings)
    )
    AND named.event_type IN ($push_pop, $start_end, $nvtxt_push_pop, $nvtxt_start_end)
    AND (
        (
            named.text IS NOT NULL
            AND (
                (
                    named.text GLOB $first_letters
                    AND EXISTS (
                        SELECT 1 FROM anchored
                        WHERE named.text GLOB anchored.pattern
                    )
                )
                OR named.text GLOB $floating_first
                OR named.text GLOB $floating_second
                OR (named.text GLOB $floating_guard AND EXISTS (
                    SELECT 1 FROM floating
                    WHERE named.text GLOB floating.pattern
                ))
            )
        )
        OR (
            named.text IS NULL
            AND named.text_id IN (
                SELECT string.id FROM JSON_EACH($text_ids) AS wanted
                INNER JOIN strings AS string ON CAST(wanted.value AS BIGINT) = string.id
            )
        )
    )
ORDER BY named.row_number
