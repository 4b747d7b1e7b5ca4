-- The texts of some string ids, given as a JSON array. The table is never read completely.
--
-- requires: strings(id, value)
SELECT
    string.id AS id,  -- number that other tables refer to
    string.value AS value  -- text of the string
FROM strings AS string
WHERE
    string.id IN (SELECT CAST(wanted.value AS BIGINT) FROM JSON_EACH($ids) AS wanted)
    AND string.value IS NOT NULL
ORDER BY string.id
