-- Every memory copy on a device, in the order the export holds them.
--
-- requires: CUPTI_ACTIVITY_KIND_MEMCPY(start, end, deviceId, correlationId, globalPid)
SELECT
    copy.start AS start_ns,  -- when the copy began on the device
    copy."end" AS end_ns,  -- when it finished
    copy.deviceId AS device_id,  -- device number as the process sees it
    COALESCE(copy.globalPid, -1) AS process,  -- host id and process id, above 24 bits
    COALESCE(copy.correlationId, -1) AS correlation_id  -- pairs with calls/all.sql
FROM CUPTI_ACTIVITY_KIND_MEMCPY AS copy
ORDER BY copy._rowid_
