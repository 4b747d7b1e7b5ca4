-- Metadata of the export.
--
-- requires: META_DATA_EXPORT(name, value)
SELECT
    meta._rowid_ AS row_number,
    meta.name AS name,
    meta.value AS value
FROM META_DATA_EXPORT AS meta
