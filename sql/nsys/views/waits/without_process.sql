-- Waits in exports that do not record the waiting process.
--
-- requires: CUPTI_ACTIVITY_KIND_SYNCHRONIZATION(start, deviceId, streamId, eventId)
SELECT
    wait._rowid_ AS row_number,  -- row number
    NULL AS process,  -- not recorded
    NULLIF(wait.deviceId, 4294967295) AS device_id,  -- device number, as numbered in the process
    NULLIF(wait.streamId, 4294967295) AS stream_id,  -- stream, or NULL if the row has none
    NULLIF(wait.eventId, 4294967295) AS event_id,  -- event, or NULL if the row has none
    NULL AS pairing,  -- not recorded
    NULL AS correlation_id,  -- not recorded
    wait.start AS start_ns  -- start of the wait on the host, in ns since the session start
FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION AS wait
