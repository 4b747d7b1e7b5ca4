-- All memsets on devices, in the order of the export.
--
-- requires: CUPTI_ACTIVITY_KIND_MEMSET(start, end, deviceId, correlationId, globalPid)
SELECT
    memset.start AS start_ns,  -- start time on the device
    memset."end" AS end_ns,  -- end time
    memset.deviceId AS device_id,  -- device number, as numbered in the process
    COALESCE(memset.globalPid, -1) AS process,  -- host id and process id, shifted left by 24 bits
    COALESCE(memset.correlationId, -1) AS correlation_id  -- pairs with calls/all.sql
FROM CUPTI_ACTIVITY_KIND_MEMSET AS memset
ORDER BY memset._rowid_
