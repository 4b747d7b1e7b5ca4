-- The texts of ranges, by their numbers (a JSON array).
--
-- requires: arguments(id, text)
SELECT
    given.id AS text_id,  -- its number
    CAST(given.text AS TEXT) AS text  -- of the range
FROM JSON_EACH(:ids) AS wanted
INNER JOIN arguments AS given ON wanted.value = given.id
ORDER BY given.id
