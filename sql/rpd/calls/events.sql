-- What calls share with what they launched: their own numbers.
--
-- requires: rocpd_api(id)
SELECT
    call.id AS event_id,  -- number of the call
    -1 AS category_id,  -- there are none
    call.id + 1 AS stack_id,  -- shared with what it launched
    0 AS correlation_id  -- there are none
FROM rocpd_api AS call
ORDER BY call.id
