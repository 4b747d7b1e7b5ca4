-- No texts, for exports without string ids.
SELECT
    NULL AS id,  -- no string has a number
    NULL AS value  -- nor a text
WHERE FALSE
