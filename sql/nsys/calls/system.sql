-- Operating system calls of the given threads (a JSON array) with a minimum duration.
--
-- Only calls that overlap the given time interval are returned. nsys -t osrt records waits, file
-- accesses and other long calls. The columns are the same as in ranges/named.sql.
--
-- requires: OSRT_API(start, end, globalTid, nameId)
SELECT
    called.start AS start_ns,  -- start of the call
    called."end" AS end_ns,  -- end of the call
    -1 AS event_type,  -- event type that no range has
    COALESCE(called.globalTid, -1) AS thread,  -- thread that made the call
    -1 AS end_thread,  -- same as thread
    COALESCE(called.nameId, -9223372036854775807 - 1) AS text_id,  -- StringIds.id of the function
    NULL AS text  -- every name is registered
FROM OSRT_API AS called
WHERE
    -- If times are damaged, their difference may not fit in 64 bits.
    CAST(called."end" AS HUGEINT) - called.start >= $shortest
    AND called.globalTid IN (
        SELECT CAST(wanted.value AS BIGINT) FROM JSON_EACH($threads) AS wanted
    )
    AND called.start < $until
    AND called."end" > $since
ORDER BY called._rowid_
