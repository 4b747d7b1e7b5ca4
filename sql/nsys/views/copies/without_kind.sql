-- Memory copies in exports that do not record the direction of copies.
--
-- requires: CUPTI_ACTIVITY_KIND_MEMCPY(start, end, deviceId, correlationId, globalPid)
SELECT
    copy._rowid_ AS row_number,  -- row number
    copy.start AS start_ns,  -- start time on the device, in ns since the session start
    copy."end" AS end_ns,  -- end time, on the same clock
    copy.deviceId AS device_id,  -- device number, as numbered in the process
    copy.globalPid AS process,  -- host id and process id, shifted left by 24 bits
    copy.correlationId AS correlation_id,  -- CUPTI's correlation id of the launching call
    NULL AS kind  -- not recorded
FROM CUPTI_ACTIVITY_KIND_MEMCPY AS copy
