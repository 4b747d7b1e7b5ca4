-- Events of calls, ranges and GPU work, with the ids that link them.
--
-- requires: events(id, category_id, stack_id, correlation_id)
SELECT
    event.id AS event_id,  -- id
    COALESCE(event.category_id, -1) AS category_id,  -- id of a kind in categories.sql
    COALESCE(event.stack_id, 0) AS stack_id,  -- id shared by a call and its GPU work, or 0
    COALESCE(event.correlation_id, 0) AS correlation_id  -- id from the recording tool, or 0
FROM events AS event
ORDER BY event.id
