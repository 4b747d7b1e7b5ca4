-- Range texts, for the events with the given ids (a JSON array) or for all events (NULL).
--
-- requires: events(id, extra)
SELECT
    event.id AS event_id,  -- id
    CAST(JSON_EXTRACT(event.extra, '$.message') AS TEXT) AS text  -- text of the range
FROM events AS event
WHERE
    ($ids IS NULL OR event.id IN (SELECT wanted.value FROM JSON_EACH($ids) AS wanted))
    AND event.extra GLOB '*"message"*' AND JSON_VALID(event.extra)
    AND JSON_EXTRACT(event.extra, '$.message') != ''
ORDER BY event.id
