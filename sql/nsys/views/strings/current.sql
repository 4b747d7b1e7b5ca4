-- Texts of all string ids.
--
-- requires: StringIds(id, value)
SELECT
    string.id AS id,  -- id by which other tables refer to the text
    string.value AS value  -- the text
FROM StringIds AS string
