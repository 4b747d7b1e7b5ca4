-- Records of CUDA events in exports that do not record when events completed.
--
-- requires: CUPTI_ACTIVITY_KIND_CUDA_EVENT(deviceId, streamId, correlationId, globalPid, eventId, eventSyncId)
SELECT
    record._rowid_ AS row_number,  -- order of the rows
    record.globalPid AS process,  -- host id and process id, shifted left by 24 bits
    record.deviceId AS device_id,  -- device number as the process sees it
    record.streamId AS stream_id,  -- stream on which the event was recorded
    record.eventId AS event_id,  -- event that was recorded
    NULLIF(NULLIF(record.eventSyncId, 4294967295), 0) AS pairing,  -- shared with the waits for this record
    record.correlationId AS correlation_id,  -- CUPTI's number of the recording call
    NULL AS completed_ns  -- not recorded
FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT AS record
