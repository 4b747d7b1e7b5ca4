-- Those of some relations, given as a JSON array, that the file has, each with its columns.
SELECT
    entry.name AS relation_name,  -- a table, a virtual table or a view
    COALESCE(entry.rootpage, 0) > 0 AS is_stored,  -- whether its rows are in the file: a table
    detail.name AS column_name  -- one of its columns
FROM sqlite_master AS entry
LEFT JOIN PRAGMA_TABLE_INFO(entry.name) AS detail ON COALESCE(entry.rootpage, 0) > 0
WHERE
    entry.type IN ('table', 'view')
    AND entry.name IN (SELECT wanted.value FROM JSON_EACH(:names) AS wanted)
ORDER BY entry.name, detail.cid
