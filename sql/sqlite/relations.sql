-- The names of all tables and views of a file, whoever wrote it.
SELECT entry.name AS relation_name  -- as the file has it
FROM sqlite_master AS entry
WHERE entry.type IN ('table', 'view')
ORDER BY entry.name
