-- Every call of the operating system by some threads (a JSON array) that lasts so long.
--
-- Those that touch a time, as nsys -t osrt records them: waits, files, and what else takes long.
--
-- requires: OSRT_API(start, end, globalTid, nameId)
-- requires: strings(id, value)
SELECT
    called.start AS start_ns,  -- when the thread entered it
    called."end" AS end_ns,  -- when it returned
    COALESCE(called.globalTid, -1) AS thread,  -- thread that called
    string.value AS name  -- name of the function
FROM OSRT_API AS called
LEFT JOIN strings AS string ON called.nameId = string.id
WHERE
    called."end" - called.start >= :shortest
    AND called.globalTid IN (SELECT thread.value FROM JSON_EACH(:threads) AS thread)
    AND called.start < :until
    AND called."end" > :since
ORDER BY called._rowid_
