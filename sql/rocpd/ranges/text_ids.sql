-- Which of some events (a JSON array of their numbers) have the text of a range.
--
-- Those of one text share the number of one of them, so that few texts are read.
--
-- requires: events(id, extra)
SELECT
    event.id AS event_id,  -- its number
    MIN(event.id) OVER (PARTITION BY event.extra) AS text_id  -- number of what texts.sql gives
FROM JSON_EACH(:ids) AS wanted
INNER JOIN events AS event ON wanted.value = event.id
WHERE event.extra GLOB '*"message"*'
ORDER BY event.id
