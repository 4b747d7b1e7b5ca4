-- Events of calls, ranges and GPU work, with the ids that link them.
--
-- requires: events(id, category_id, stack_id, correlation_id)
SELECT
    event.id AS event_id,  -- id
    COALESCE(event.category_id, -1) AS category_id,  -- number of what categories.sql gives
    COALESCE(event.stack_id, 0) AS stack_id,  -- same for a call and its launched work, or 0
    COALESCE(event.correlation_id, 0) AS correlation_id  -- id of the tool, or 0 for none
FROM events AS event
ORDER BY event.id
