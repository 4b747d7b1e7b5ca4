-- The texts of some string ids, given as a JSON array; the table is never read whole.
--
-- requires: strings(id, value)
SELECT
    string.id AS id,  -- what other tables refer to
    string.value AS value  -- its text
FROM strings AS string
WHERE
    string.id IN (SELECT CAST(wanted.value AS BIGINT) FROM JSON_EACH($ids) AS wanted)
    AND string.value IS NOT NULL
ORDER BY string.id
