-- Every memory fill on a device, in the order the export holds them.
--
-- requires: CUPTI_ACTIVITY_KIND_MEMSET(start, end, deviceId, correlationId, globalPid)
SELECT
    fill.start AS start_ns,  -- when the fill began on the device
    fill."end" AS end_ns,  -- when it finished
    fill.deviceId AS device_id,  -- device number as the process sees it
    COALESCE(fill.globalPid, -1) >> 24 AS process,  -- host id and process id
    COALESCE(fill.correlationId, -1) AS correlation_id  -- pairs with calls/all.sql
FROM CUPTI_ACTIVITY_KIND_MEMSET AS fill
ORDER BY fill.rowid
