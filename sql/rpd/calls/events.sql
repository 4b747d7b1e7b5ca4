-- Events of calls. The id of a call also links it to the work that it launched.
--
-- requires: rocpd_api(id)
SELECT
    call.id AS event_id,  -- id of the call
    -1 AS category_id,  -- there are none
    call.id + 1 AS stack_id,  -- shared with the work that it launched
    0 AS correlation_id  -- there are none
FROM rocpd_api AS call
ORDER BY call.id
