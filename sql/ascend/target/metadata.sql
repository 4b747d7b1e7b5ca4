-- The version of the database's schema.
--
-- requires: META_DATA(name, value)
SELECT fact.value AS version  -- for example 1.0.2
FROM META_DATA AS fact
WHERE fact.name = 'SCHEMA_VERSION'
ORDER BY fact.value
