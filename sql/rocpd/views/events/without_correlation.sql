-- Events of calls, ranges and GPU work, in files without the recording tool's own ids.
--
-- requires: rocpd_event(id, category_id, stack_id, extdata)
SELECT
    event.id AS id,  -- id
    event.category_id AS category_id,  -- id of its kind: a string or a category
    event.stack_id AS stack_id,  -- shared by a call and the work that it launched
    NULL AS correlation_id,  -- not recorded
    event.extdata AS extra  -- JSON: the text of a range
FROM rocpd_event AS event
