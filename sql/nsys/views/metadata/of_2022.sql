-- The metadata of exports until 2022, in which the table has its old name.
--
-- requires: EXPORT_META_DATA(name, value)
SELECT
    meta._rowid_ AS row_number,  -- row number
    meta.name AS name,  -- name of the entry, such as EXPORT_SCHEMA_VERSION
    meta.value AS value  -- value of the entry
FROM EXPORT_META_DATA AS meta
