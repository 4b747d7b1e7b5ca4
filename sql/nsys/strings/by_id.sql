-- Registered strings with the given ids (a JSON array). The query does not scan the table.
--
-- requires: strings(id, value)
SELECT
    string.id AS id,  -- id used in other tables
    string.value AS value  -- text of the string
FROM strings AS string
WHERE
    string.id IN (SELECT CAST(wanted.value AS BIGINT) FROM JSON_EACH($ids) AS wanted)
    AND string.value IS NOT NULL
ORDER BY string.id
