-- CUDA API calls in exports that do not record call names.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start, end, globalTid, correlationId, returnValue)
SELECT
    call._rowid_ AS row_number,  -- row number
    call.start AS start_ns,  -- start of the call, in ns since the session start
    call."end" AS end_ns,  -- end of the call, on the same clock
    call.globalTid AS thread,  -- host id, process id and thread id
    call.correlationId AS correlation_id,  -- CUPTI's correlation id, unique within a process
    NULL AS name_id,  -- not recorded
    call.returnValue AS error  -- error number, or 0 if there was no error
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
