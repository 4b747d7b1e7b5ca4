-- Names of ranges in some rows that pass GLOB patterns.
--
-- requires: ranges(row_number, event_type, text, text_id)
-- requires: strings(id, value)
WITH
anchored AS (SELECT DISTINCT given.value AS pattern FROM JSON_EACH(:anchored) AS given),

floating AS (SELECT DISTINCT given.value AS pattern FROM JSON_EACH(:floating) AS given)

SELECT COALESCE(named.text, name.value) AS text  -- name of the range
FROM ranges AS named
LEFT JOIN strings AS name ON named.text IS NULL AND named.text_id = name.id
WHERE
    named.row_number BETWEEN :first AND :last
    AND named.event_type IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
    AND (
        (
            COALESCE(named.text, name.value) GLOB :first_letters
            AND EXISTS (
                SELECT 1 FROM anchored
                WHERE COALESCE(named.text, name.value) GLOB anchored.pattern
            )
        )
        OR COALESCE(named.text, name.value) GLOB :floating_first
        OR COALESCE(named.text, name.value) GLOB :floating_second
        OR (COALESCE(named.text, name.value) GLOB :floating_guard AND EXISTS (
            SELECT 1 FROM floating
            WHERE COALESCE(named.text, name.value) GLOB floating.pattern
        ))
    )
ORDER BY named.row_number
