-- Metadata of exports up to 2022, under the table's old name.
--
-- requires: EXPORT_META_DATA(name, value)
SELECT
    meta._rowid_ AS row_number,
    meta.name AS name,
    meta.value AS value
FROM EXPORT_META_DATA AS meta
