-- Metadata of the export.
--
-- requires: META_DATA_EXPORT(name, value)
SELECT
    meta._rowid_ AS row_number,  -- order of the rows
    meta.name AS name,  -- name of the entry, such as EXPORT_SCHEMA_VERSION
    meta.value AS value  -- text of the string
FROM META_DATA_EXPORT AS meta
