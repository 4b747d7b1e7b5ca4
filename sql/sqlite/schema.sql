-- How a file stores relations: where each begins, and its columns.
--
-- $names is a JSON array of relation names, or NULL for all relations.
--
SELECT
    entry.name AS relation_name,  -- name of a table, a virtual table or a view
    COALESCE(entry.rootpage, 0) AS root_page,  -- page where its B-tree begins, or 0 if it has none
    COALESCE(entry.sql, '') AS definition,  -- the statement that created it
    detail.cid AS place,  -- position in the table, from 0, or NULL if there is no B-tree
    detail.name AS column_name,  -- its name
    detail.type AS declared_type,  -- INT, INTEGER, TEXT ...
    detail.pk AS key_place,  -- position in the primary key, from 1, or 0 if not part of it
    detail.hidden AS hidden  -- not 0 if the column is generated
FROM sqlite_master AS entry
LEFT JOIN
    PRAGMA_TABLE_XINFO(CASE WHEN entry.rootpage > 0 THEN entry.name END) AS detail
    ON entry.rootpage > 0
WHERE
    entry.type IN ('table', 'view')
    AND ($names IS NULL OR entry.name IN (SELECT wanted.value FROM JSON_EACH($names) AS wanted))
ORDER BY entry.name, detail.cid
