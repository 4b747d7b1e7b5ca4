-- Metadata of exports up to 2022, under the table's old name.
--
-- requires: EXPORT_META_DATA(name, value)
SELECT
    meta._rowid_ AS row_number,  -- order of the rows
    meta.name AS name,  -- which entry, such as EXPORT_SCHEMA_VERSION
    meta.value AS value  -- its text
FROM EXPORT_META_DATA AS meta
