-- Tables and views in an SQLite file, with their root pages and columns.
--
-- $names is a JSON array of relation names, or NULL for all relations.
--
SELECT
    entry.name AS relation_name,  -- name of a table, a virtual table or a view
    COALESCE(entry.rootpage, 0) AS root_page,  -- root page of the B-tree, or 0 if there is none
    COALESCE(entry.sql, '') AS definition,  -- statement that created the table or view
    detail.cid AS place,  -- index of the column, or NULL if there is no B-tree
    detail.name AS column_name,  -- name of the column
    detail.type AS declared_type,  -- declared type, such as INTEGER
    detail.pk AS key_place,  -- position in the primary key from 1, or 0 if not in it
    detail.hidden AS hidden  -- not 0 if the column is generated
FROM sqlite_master AS entry
LEFT JOIN
    PRAGMA_TABLE_XINFO(CASE WHEN entry.rootpage > 0 THEN entry.name END) AS detail
    ON entry.rootpage > 0
WHERE
    entry.type IN ('table', 'view')
    AND ($names IS NULL OR entry.name IN (SELECT wanted.value FROM JSON_EACH($names) AS wanted))
ORDER BY entry.name, detail.cid
