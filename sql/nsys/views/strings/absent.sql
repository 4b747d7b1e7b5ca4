-- An empty table of registered strings, for exports that have none.
SELECT
    NULL AS id,  -- no string exists, so there is no id
    NULL AS value  -- no string exists, so there is no text
WHERE FALSE
