-- The names of threads; a thread can have been given several.
--
-- requires: ThreadNames(nameId, globalTid)
-- requires: strings(id, value)
SELECT
    named.globalTid AS thread,  -- host id, process id and thread id
    string.value AS name  -- its name
FROM ThreadNames AS named
INNER JOIN strings AS string ON named.nameId = string.id
WHERE named.globalTid IS NOT NULL AND string.value IS NOT NULL
ORDER BY named._rowid_
