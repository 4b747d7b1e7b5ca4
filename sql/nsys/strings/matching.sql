-- Registered strings whose text matches at least one of the GLOBs.
--
-- ranges/named.sql filters the texts of ranges in the same way. Both files contain the filter,
-- because a view cannot have parameters. A view of all names would have to join the strings to
-- every range before filtering.
--
-- requires: strings(id, value)
WITH
anchored AS (SELECT DISTINCT given.value AS pattern FROM JSON_EACH($anchored) AS given),

floating AS (SELECT DISTINCT given.value AS pattern FROM JSON_EACH($floating) AS given)

SELECT
    string.id AS id,  -- id used in other tables
    string.value AS value  -- text of the string
FROM strings AS string
WHERE
    (
        string.value GLOB $first_letters
        AND EXISTS (
            SELECT 1 FROM anchored
            WHERE string.value GLOB anchored.pattern
        )
    )
    OR string.value GLOB $floating_first
    OR string.value GLOB $floating_second
    OR (string.value GLOB $floating_guard AND EXISTS (
        SELECT 1 FROM floating
        WHERE string.value GLOB floating.pattern
    ))
ORDER BY string.id
