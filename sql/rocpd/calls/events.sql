-- What calls, ranges and work of devices have in common.
--
-- requires: events(id, category_id, stack_id, correlation_id)
SELECT
    event.id AS event_id,  -- its number
    COALESCE(event.category_id, -1) AS category_id,  -- number of what categories.sql gives
    COALESCE(event.stack_id, 0) AS stack_id,  -- shared by a call and what it launched; 0 none
    COALESCE(event.correlation_id, 0) AS correlation_id  -- by the tool; 0 none
FROM events AS event
ORDER BY event.id
