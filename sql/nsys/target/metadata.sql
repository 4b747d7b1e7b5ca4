-- Version of nsys and of the schema, as the export's own metadata says.
--
-- requires: metadata(row_number, name, value)
SELECT
    meta.name AS name,  -- which version
    meta.value AS value  -- its text
FROM metadata AS meta
WHERE meta.name IN ('EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION')
ORDER BY meta.row_number
