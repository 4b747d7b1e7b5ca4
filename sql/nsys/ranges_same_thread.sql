-- Every NVTX range whose name may follow a naming convention, in the order the export holds them.
--
-- Names are filtered here, in C, so that a deeply annotated export costs only its scan. The GLOB
-- patterns are given as a JSON array, which DISTINCT has SQLite parse once, not at every row.
-- For exports that do not say which thread ended a range.
--
-- requires: NVTX_EVENTS(start, end, eventType, globalTid, text, textId)
-- requires: StringIds(id, value)
WITH wanted AS (
    SELECT DISTINCT given.value AS pattern FROM JSON_EACH(:globs) AS given
)

SELECT
    named.start AS start_ns,  -- when the range was pushed or started
    named."end" AS end_ns,  -- when it was popped or ended; NULL if the capture ended first
    named.eventType AS event_type,  -- push/pop or start/end
    COALESCE(named.globalTid, -1) AS thread,  -- thread that opened it
    -1 AS end_thread,  -- thread that ended a start/end range: not recorded
    COALESCE(named.text, name.value) AS text  -- its name
FROM NVTX_EVENTS AS named
LEFT JOIN StringIds AS name ON named.text IS NULL AND named.textId = name.id
WHERE
    named.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
    AND (
        (
            named.text IS NOT NULL AND EXISTS (
                SELECT 1 FROM wanted
                WHERE named.text GLOB wanted.pattern
            )
        )
        OR (
            named.text IS NULL AND named.textId IN (
                SELECT candidate.id FROM StringIds AS candidate
                WHERE EXISTS (
                    SELECT 1 FROM wanted
                    WHERE candidate.value GLOB wanted.pattern
                )
            )
        )
    )
ORDER BY named.rowid
