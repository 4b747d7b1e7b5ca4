-- The names of all tables and views in any SQLite file.
SELECT entry.name AS relation_name  -- name, as written in the file
FROM sqlite_master AS entry
WHERE entry.type IN ('table', 'view')
ORDER BY entry.name
