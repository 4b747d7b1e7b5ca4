-- CUDA API calls in exports that do not record correlation ids.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start, end, globalTid, nameId, returnValue)
SELECT
    call._rowid_ AS row_number,  -- row number
    call.start AS start_ns,  -- start of the call, in ns since the session start
    call."end" AS end_ns,  -- end of the call, on the same clock
    call.globalTid AS thread,  -- host id, process id and thread id
    NULL AS correlation_id,  -- not recorded
    call.nameId AS name_id,  -- StringIds.id of the name
    call.returnValue AS error  -- error number, or 0 if there was no error
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
