-- Waits in exports that do not link waits to event records.
--
-- requires: CUPTI_ACTIVITY_KIND_SYNCHRONIZATION(start, deviceId, streamId, correlationId, globalPid, eventId)
SELECT
    wait._rowid_ AS row_number,  -- row number
    wait.globalPid AS process,  -- host id and process id, shifted left by 24 bits
    NULLIF(wait.deviceId, 4294967295) AS device_id,  -- device number, as numbered in the process
    NULLIF(wait.streamId, 4294967295) AS stream_id,  -- stream, or NULL if the row has none
    NULLIF(wait.eventId, 4294967295) AS event_id,  -- event, or NULL if the row has none
    NULL AS pairing,  -- not recorded
    wait.correlationId AS correlation_id,  -- CUPTI's correlation id of the waiting call
    wait.start AS start_ns  -- start of the wait on the host, in ns since the session start
FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION AS wait
