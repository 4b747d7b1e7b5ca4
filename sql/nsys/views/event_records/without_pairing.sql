-- CUDA event records in exports that do not link waits to records.
--
-- requires: CUPTI_ACTIVITY_KIND_CUDA_EVENT(deviceId, streamId, correlationId, globalPid, eventId)
SELECT
    record._rowid_ AS row_number,  -- row number
    record.globalPid AS process,  -- host id and process id, shifted left by 24 bits
    record.deviceId AS device_id,  -- device number, as numbered in the process
    record.streamId AS stream_id,  -- stream on which the event was recorded
    record.eventId AS event_id,  -- CUDA event that was recorded
    NULL AS pairing,  -- not recorded
    record.correlationId AS correlation_id,  -- CUPTI's correlation id of the recording call
    NULL AS completed_ns  -- not recorded
FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT AS record
