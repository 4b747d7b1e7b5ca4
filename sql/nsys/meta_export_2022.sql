-- Version of nsys and of the schema, as the export's own metadata says.
--
-- requires: EXPORT_META_DATA(name, value)
SELECT
    meta.name AS name,  -- which version
    meta.value AS value  -- its text
FROM EXPORT_META_DATA AS meta
WHERE meta.name IN ('EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION')
ORDER BY meta.rowid
