-- Registered strings.
--
-- requires: StringIds(id, value)
SELECT
    string.id AS id,  -- id used in other tables
    string.value AS value  -- the text
FROM StringIds AS string
