-- Events of calls, ranges and GPU work, in files without ids from the recording tool.
--
-- requires: rocpd_event(id, category_id, stack_id, extdata)
SELECT
    event.id AS id,  -- id
    event.category_id AS category_id,  -- id of the event kind
    event.stack_id AS stack_id,  -- id shared by a call and its GPU work
    NULL AS correlation_id,  -- not recorded
    event.extdata AS extra  -- JSON object with the text of a range
FROM rocpd_event AS event
