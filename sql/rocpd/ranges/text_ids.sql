-- Every event with the text of a range; those of one text share the number of one of them.
--
-- So few texts are read.
--
-- requires: events(id, extra)
SELECT
    event.id AS event_id,  -- its number
    MIN(event.id) OVER (PARTITION BY event.extra) AS text_id  -- number of what texts.sql gives
FROM events AS event
WHERE event.extra GLOB '*"message"*'
ORDER BY event.id
