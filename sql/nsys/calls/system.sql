-- Every call of the operating system by some threads (a JSON array) that lasts so long.
--
-- Those that touch a time, as nsys -t osrt records them: waits, files, and what else takes long.
-- Columns as in ranges/named.sql.
--
-- requires: OSRT_API(start, end, globalTid, nameId)
SELECT
    called.start AS start_ns,  -- when the thread entered it
    called."end" AS end_ns,  -- when it returned
    -1 AS event_type,  -- of no kind of ranges
    COALESCE(called.globalTid, -1) AS thread,  -- thread that called
    -1 AS end_thread,  -- the same
    COALESCE(called.nameId, -9223372036854775807 - 1) AS text_id,  -- StringIds.id of the function
    NULL AS text  -- every name is registered
FROM OSRT_API AS called
WHERE
    -- Damaged times may differ by more than 64 bits hold.
    CAST(called."end" AS HUGEINT) - called.start >= $shortest
    AND called.globalTid IN (
        SELECT CAST(wanted.value AS BIGINT) FROM JSON_EACH($threads) AS wanted
    )
    AND called.start < $until
    AND called."end" > $since
ORDER BY called._rowid_
