-- Names of ranges in some rows that pass GLOB patterns, all names being registered strings.
--
-- requires: NVTX_EVENTS(eventType, textId)
-- requires: StringIds(id, value)
WITH
anchored AS (SELECT DISTINCT given.value AS pattern FROM JSON_EACH(:anchored) AS given),

floating AS (SELECT DISTINCT given.value AS pattern FROM JSON_EACH(:floating) AS given)

SELECT name.value AS text  -- name of the range
FROM NVTX_EVENTS AS named
INNER JOIN StringIds AS name ON named.textId = name.id
WHERE
    named.rowid BETWEEN :first AND :last
    AND named.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
    AND (
        (
            name.value GLOB :first_letters
            AND EXISTS (
                SELECT 1 FROM anchored
                WHERE name.value GLOB anchored.pattern
            )
        )
        OR name.value GLOB :floating_first
        OR (:floating_more AND EXISTS (
            SELECT 1 FROM floating
            WHERE name.value GLOB floating.pattern
        ))
    )
ORDER BY named.rowid
