-- Calls that copied memory.
--
-- requires: rocpd_copyapi(api_ptr_id, size)
SELECT
    copy_call.api_ptr_id AS call_id,  -- rocpd_api.id of the call
    copy_call.size AS size  -- number of bytes
FROM rocpd_copyapi AS copy_call
