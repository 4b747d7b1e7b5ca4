-- The export's metadata.
--
-- requires: META_DATA_EXPORT(name, value)
SELECT
    meta._rowid_ AS row_number,  -- row number
    meta.name AS name,  -- name of the entry, such as EXPORT_SCHEMA_VERSION
    meta.value AS value  -- value of the entry
FROM META_DATA_EXPORT AS meta
