-- Registered strings.
--
-- requires: StringIds(id, value)
SELECT
    string.id AS id,  -- id that other tables refer to
    string.value AS value  -- the text
FROM StringIds AS string
