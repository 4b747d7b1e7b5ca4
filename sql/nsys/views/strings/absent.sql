-- No texts, for exports without string ids.
SELECT
    NULL AS id,
    NULL AS value
WHERE FALSE
