-- Versions of nsys and of the schema, from the metadata of the export.
--
-- requires: metadata(row_number, name, value)
SELECT
    meta.name AS name,  -- version
    meta.value AS value  -- text of the string
FROM metadata AS meta
WHERE meta.name IN ('EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION')
ORDER BY meta.row_number
