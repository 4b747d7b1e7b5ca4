-- An empty table of registered strings, for exports without registered strings.
SELECT
    NULL AS id,  -- no string exists, so there is no id
    NULL AS value  -- no string exists, so there is no text
WHERE FALSE
