-- The columns of every table of a file, whoever wrote it; views, which repeat tables, have none.
SELECT
    entry.name AS table_name,  -- as the file has it
    detail.name AS column_name  -- one of its columns
FROM sqlite_master AS entry
LEFT JOIN PRAGMA_TABLE_XINFO(entry.name) AS detail ON detail.hidden = 0
WHERE
    entry.type = 'table'
    AND entry.rootpage > 0
ORDER BY entry.name, detail.cid
