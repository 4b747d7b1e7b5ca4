-- Versions of nsys and the schema, from the export's metadata.
--
-- requires: metadata(row_number, name, value)
SELECT
    meta.name AS name,  -- name of the entry, such as EXPORT_SCHEMA_VERSION
    meta.value AS value  -- value of the entry
FROM metadata AS meta
WHERE meta.name IN ('EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION')
ORDER BY meta.row_number
