-- Call events. The id of a call also links the call to the work that it launched.
--
-- requires: rocpd_api(id)
SELECT
    call.id AS event_id,  -- id of the call
    -1 AS category_id,  -- not recorded
    call.id + 1 AS stack_id,  -- id shared with the GPU work of the call
    0 AS correlation_id  -- not recorded
FROM rocpd_api AS call
ORDER BY call.id
