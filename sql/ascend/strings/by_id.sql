-- Texts for the given ids (a JSON array).
--
-- requires: STRING_IDS(id, value)
SELECT
    named.id AS name_id,  -- id
    named.value AS name  -- text
FROM JSON_EACH($ids) AS wanted
INNER JOIN STRING_IDS AS named ON wanted.value = named.id
ORDER BY named.id
