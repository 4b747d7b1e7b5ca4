-- Events of calls, ranges and GPU work, in files without range texts.
--
-- requires: rocpd_event(id, category_id, stack_id, correlation_id)
SELECT
    event.id AS id,  -- id
    event.category_id AS category_id,  -- id of the event kind
    event.stack_id AS stack_id,  -- id shared by a call and its GPU work
    event.correlation_id AS correlation_id,  -- id from the recording tool
    NULL AS extra  -- not recorded
FROM rocpd_event AS event
