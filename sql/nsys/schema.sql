-- The tables of a file, each with its columns.
SELECT
    entry.name AS table_name,  -- a table
    detail.name AS column_name  -- one of its columns
FROM sqlite_master AS entry
INNER JOIN PRAGMA_TABLE_INFO(entry.name) AS detail ON entry.type = 'table'
ORDER BY entry.name, detail.cid
