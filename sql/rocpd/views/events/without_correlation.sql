-- What calls, ranges and device work have in common, of files without the ids of the tool that recorded them.
--
-- requires: rocpd_event(id, category_id, stack_id, extdata)
SELECT
    event.id AS id,  -- id
    event.category_id AS category_id,  -- what kind it is, by a string or a category
    event.stack_id AS stack_id,  -- shared by a call and what it launched
    NULL AS correlation_id,  -- not recorded
    event.extdata AS extra  -- JSON: the text of a range
FROM rocpd_event AS event
