-- Events of calls, ranges and GPU work.
--
-- requires: rocpd_event(id, category_id, stack_id, correlation_id, extdata)
SELECT
    event.id AS id,  -- id
    event.category_id AS category_id,  -- id of its kind: a string or a category
    event.stack_id AS stack_id,  -- shared by a call and the work that it launched
    event.correlation_id AS correlation_id,  -- id given by the tool that recorded it
    event.extdata AS extra  -- JSON: the text of a range
FROM rocpd_event AS event
