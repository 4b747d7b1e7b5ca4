-- An empty table of texts, for exports without string ids.
SELECT
    NULL AS id,  -- no string exists, so there is no id
    NULL AS value  -- no string exists, so there is no text
WHERE FALSE
