-- The texts of ranges, by the numbers of their events (a JSON array).
--
-- requires: events(id, extra)
SELECT
    event.id AS text_id,  -- number of the event
    CASE
        WHEN JSON_VALID(event.extra) AND JSON_TYPE(event.extra) = 'object'
            THEN CAST(JSON_EXTRACT(event.extra, '$.message') AS TEXT)
    END AS text  -- of the range; NULL where it is none
FROM JSON_EACH(:ids) AS wanted
INNER JOIN events AS event ON wanted.value = event.id
ORDER BY event.id
