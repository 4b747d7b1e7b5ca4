-- CUDA event records.
--
-- requires: CUPTI_ACTIVITY_KIND_CUDA_EVENT(timestamp, deviceId, streamId, correlationId, globalPid, eventId, eventSyncId)
SELECT
    record._rowid_ AS row_number,  -- row number
    record.globalPid AS process,  -- host id and process id, shifted left by 24 bits
    record.deviceId AS device_id,  -- device number, as numbered in the process
    record.streamId AS stream_id,  -- stream on which the event was recorded
    record.eventId AS event_id,  -- CUDA event that was recorded
    NULLIF(NULLIF(record.eventSyncId, 4294967295), 0) AS pairing,  -- id in waits for this record
    record.correlationId AS correlation_id,  -- CUPTI's correlation id of the recording call
    NULLIF(record.timestamp, 0) AS completed_ns  -- completion, ns since the session start
FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT AS record
