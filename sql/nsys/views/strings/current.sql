-- Texts of all string ids.
--
-- requires: StringIds(id, value)
SELECT
    string.id AS id,
    string.value AS value
FROM StringIds AS string
