-- How a file stores relations, those that a JSON array names or all: where each begins, its columns.
SELECT
    entry.name AS relation_name,  -- a table, a virtual table or a view
    COALESCE(entry.rootpage, 0) AS root_page,  -- where its B-tree begins; 0 of what has none
    COALESCE(entry.sql, '') AS definition,  -- the statement that created it
    detail.cid AS place,  -- of the column in the table, from 0; NULL where there is no B-tree
    detail.name AS column_name,  -- its name
    detail.type AS declared_type,  -- INT, INTEGER, TEXT ...
    detail.pk AS key_place,  -- place in the primary key, from 1; 0 if it is none of it
    detail.hidden AS hidden  -- not 0 of columns that are generated
FROM sqlite_master AS entry
LEFT JOIN
    PRAGMA_TABLE_XINFO(CASE WHEN entry.rootpage > 0 THEN entry.name END) AS detail
    ON entry.rootpage > 0
WHERE
    entry.type IN ('table', 'view')
    AND ($names IS NULL OR entry.name IN (SELECT wanted.value FROM JSON_EACH($names) AS wanted))
ORDER BY entry.name, detail.cid
