-- Events of calls, ranges and GPU work, in files that do not link calls to the work they launched.
--
-- requires: rocpd_event(id, category_id, correlation_id, extdata)
SELECT
    event.id AS id,  -- id
    event.category_id AS category_id,  -- id of its kind: a string or a category
    NULL AS stack_id,  -- not recorded
    event.correlation_id AS correlation_id,  -- id given by the tool that recorded it
    event.extdata AS extra  -- JSON: the text of a range
FROM rocpd_event AS event
