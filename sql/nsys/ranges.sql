-- Every NVTX range whose name may follow a naming convention, in the order the export holds them.
--
-- Names are filtered here, in C, so that a deeply annotated export costs only its scan. Up to
-- sixteen GLOB patterns are given; :globs is how many count.
-- A name is given as text, or as a registered string.
--
-- requires: NVTX_EVENTS(start, end, eventType, globalTid, endGlobalTid, text, textId)
-- requires: StringIds(id, value)
SELECT
    named.start AS start_ns,  -- when the range was pushed or started
    named."end" AS end_ns,  -- when it was popped or ended; NULL if the capture ended first
    named.eventType AS event_type,  -- push/pop or start/end
    COALESCE(named.globalTid, -1) AS thread,  -- thread that opened it
    COALESCE(named.endGlobalTid, -1) AS end_thread,  -- thread that ended a start/end range
    COALESCE(named.text, name.value) AS text  -- its name
FROM NVTX_EVENTS AS named
LEFT JOIN StringIds AS name ON named.text IS NULL AND named.textId = name.id
WHERE
    named.eventType IN (:push_pop, :start_end, :nvtxt_push_pop, :nvtxt_start_end)
    AND (
        (
            named.text IS NOT NULL AND (
                named.text GLOB :glob_1
                OR (:globs > 1 AND named.text GLOB :glob_2)
                OR (:globs > 2 AND named.text GLOB :glob_3)
                OR (:globs > 3 AND named.text GLOB :glob_4)
                OR (:globs > 4 AND named.text GLOB :glob_5)
                OR (:globs > 5 AND named.text GLOB :glob_6)
                OR (:globs > 6 AND named.text GLOB :glob_7)
                OR (:globs > 7 AND named.text GLOB :glob_8)
                OR (:globs > 8 AND named.text GLOB :glob_9)
                OR (:globs > 9 AND named.text GLOB :glob_10)
                OR (:globs > 10 AND named.text GLOB :glob_11)
                OR (:globs > 11 AND named.text GLOB :glob_12)
                OR (:globs > 12 AND named.text GLOB :glob_13)
                OR (:globs > 13 AND named.text GLOB :glob_14)
                OR (:globs > 14 AND named.text GLOB :glob_15)
                OR (:globs > 15 AND named.text GLOB :glob_16)
            )
        )
        OR (
            named.text IS NULL AND named.textId IN (
                SELECT candidate.id FROM StringIds AS candidate
                WHERE
                    candidate.value GLOB :glob_1
                    OR (:globs > 1 AND candidate.value GLOB :glob_2)
                    OR (:globs > 2 AND candidate.value GLOB :glob_3)
                    OR (:globs > 3 AND candidate.value GLOB :glob_4)
                    OR (:globs > 4 AND candidate.value GLOB :glob_5)
                    OR (:globs > 5 AND candidate.value GLOB :glob_6)
                    OR (:globs > 6 AND candidate.value GLOB :glob_7)
                    OR (:globs > 7 AND candidate.value GLOB :glob_8)
                    OR (:globs > 8 AND candidate.value GLOB :glob_9)
                    OR (:globs > 9 AND candidate.value GLOB :glob_10)
                    OR (:globs > 10 AND candidate.value GLOB :glob_11)
                    OR (:globs > 11 AND candidate.value GLOB :glob_12)
                    OR (:globs > 12 AND candidate.value GLOB :glob_13)
                    OR (:globs > 13 AND candidate.value GLOB :glob_14)
                    OR (:globs > 14 AND candidate.value GLOB :glob_15)
                    OR (:globs > 15 AND candidate.value GLOB :glob_16)
            )
        )
    )
ORDER BY named.rowid
