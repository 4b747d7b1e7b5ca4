-- The names of all tables and views in an SQLite file.
SELECT entry.name AS relation_name  -- name of the table or view
FROM sqlite_master AS entry
WHERE entry.type IN ('table', 'view')
ORDER BY entry.name
