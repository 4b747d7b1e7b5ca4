-- Events of calls, ranges and GPU work, in files that do not record event kinds.
--
-- requires: rocpd_event(id, stack_id, correlation_id, extdata)
SELECT
    event.id AS id,  -- id
    NULL AS category_id,  -- not recorded
    event.stack_id AS stack_id,  -- id shared by a call and its GPU work
    event.correlation_id AS correlation_id,  -- id from the recording tool
    event.extdata AS extra  -- JSON object with the text of a range
FROM rocpd_event AS event
