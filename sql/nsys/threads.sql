-- The names of threads; the last one given to a thread counts.
--
-- requires: ThreadNames(nameId, globalTid)
-- requires: StringIds(id, value)
SELECT
    named.globalTid AS thread,  -- host id, process id and thread id
    string.value AS name  -- its name
FROM ThreadNames AS named
INNER JOIN StringIds AS string ON named.nameId = string.id
WHERE named.globalTid IS NOT NULL
ORDER BY named.rowid
