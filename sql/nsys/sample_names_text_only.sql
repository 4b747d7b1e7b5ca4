-- Names of ranges in some rows that pass GLOB patterns, no name being a registered string.
--
-- requires: NVTX_EVENTS(eventType, text)
WITH
anchored AS (SELECT DISTINCT given.value AS pattern FROM JSON_EACH(:anchored) AS given),

floating AS (SELECT DISTINCT given.value AS pattern FROM JSON_EACH(:floating) AS given)

SELECT named.text AS text  -- name of the range
FROM NVTX_EVENTS AS named
WHERE
    named.rowid BETWEEN :first AND :last
    AND named.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
    AND (
        (
            named.text GLOB :first_letters
            AND EXISTS (
                SELECT 1 FROM anchored
                WHERE named.text GLOB anchored.pattern
            )
        )
        OR named.text GLOB :floating_first
        OR (:floating_more AND EXISTS (
            SELECT 1 FROM floating
            WHERE named.text GLOB floating.pattern
        ))
    )
ORDER BY named.rowid
