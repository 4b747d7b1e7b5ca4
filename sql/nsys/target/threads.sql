-- Thread names. A thread may have several names.
--
-- requires: ThreadNames(nameId, globalTid)
SELECT
    named.globalTid AS thread,  -- host id, process id and thread id
    named.nameId AS name_id  -- StringIds.id of the name
FROM ThreadNames AS named
WHERE named.globalTid IS NOT NULL AND named.nameId IS NOT NULL
ORDER BY named._rowid_
