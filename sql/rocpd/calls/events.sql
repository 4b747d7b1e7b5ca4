-- Events of calls, ranges and GPU work, with the ids that link them.
--
-- requires: events(id, category_id, stack_id, correlation_id)
SELECT
    event.id AS event_id,  -- id
    COALESCE(event.category_id, -1) AS category_id,  -- id of a kind in categories.sql
    COALESCE(event.stack_id, 0) AS stack_id,  -- shared by a call and the work that it launched, or 0
    COALESCE(event.correlation_id, 0) AS correlation_id  -- id given by the tool, or 0 if there is none
FROM events AS event
ORDER BY event.id
