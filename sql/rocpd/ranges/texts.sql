-- Texts of ranges, by their events.
--
-- requires: events(id, extra)
SELECT
    event.id AS event_id,  -- its number
    CAST(JSON_EXTRACT(event.extra, '$.message') AS TEXT) AS text  -- of the range
FROM events AS event
WHERE
    event.extra GLOB '*"message"*' AND JSON_VALID(event.extra)
    AND JSON_EXTRACT(event.extra, '$.message') != ''
ORDER BY event.id
