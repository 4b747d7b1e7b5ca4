-- Events of calls, ranges and GPU work, in files that do not record the kinds of events.
--
-- requires: rocpd_event(id, stack_id, correlation_id, extdata)
SELECT
    event.id AS id,  -- id
    NULL AS category_id,  -- not recorded
    event.stack_id AS stack_id,  -- shared by a call and the work that it launched
    event.correlation_id AS correlation_id,  -- id given by the tool that recorded it
    event.extdata AS extra  -- JSON: the text of a range
FROM rocpd_event AS event
