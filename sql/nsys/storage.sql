-- How the file stores some tables, given as a JSON array: where each begins, and its columns.
SELECT
    entry.name AS table_name,  -- as nsys named it
    entry.rootpage AS root_page,  -- where its B-tree begins
    COALESCE(entry.sql, '') AS definition,  -- the statement that created it
    detail.cid AS place,  -- of the column in the table, from 0
    detail.name AS column_name,  -- its name
    detail.type AS declared_type,  -- INT, INTEGER, TEXT ...
    detail.pk AS key_place,  -- place in the primary key, from 1; 0 if it is none of it
    detail.hidden AS hidden  -- not 0 of columns that are generated, or of a virtual table
FROM sqlite_master AS entry
INNER JOIN PRAGMA_TABLE_XINFO(entry.name) AS detail ON entry.type = 'table'
WHERE entry.name IN (SELECT wanted.value FROM JSON_EACH(:names) AS wanted)
ORDER BY entry.name, detail.cid
