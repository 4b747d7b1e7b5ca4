-- The version of the file's schema.
--
-- requires: rocpd_metadata(tag, value)
SELECT fact.value AS version  -- for example 2
FROM rocpd_metadata AS fact
WHERE fact.tag = 'schema_version'
ORDER BY fact.value
