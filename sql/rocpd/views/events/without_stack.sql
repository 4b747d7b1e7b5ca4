-- Events of calls, ranges and GPU work, in files that do not link calls to the work they launched.
--
-- requires: rocpd_event(id, category_id, correlation_id, extdata)
SELECT
    event.id AS id,  -- id
    event.category_id AS category_id,  -- id of the event kind
    NULL AS stack_id,  -- not recorded
    event.correlation_id AS correlation_id,  -- id from the recording tool
    event.extdata AS extra  -- JSON object with the text of a range
FROM rocpd_event AS event
