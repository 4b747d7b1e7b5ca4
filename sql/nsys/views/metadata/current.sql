-- Metadata of the export.
--
-- requires: META_DATA_EXPORT(name, value)
SELECT
    meta._rowid_ AS row_number,  -- order of the rows
    meta.name AS name,  -- which entry, such as EXPORT_SCHEMA_VERSION
    meta.value AS value  -- its text
FROM META_DATA_EXPORT AS meta
