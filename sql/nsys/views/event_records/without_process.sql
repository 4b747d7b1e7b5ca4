-- Records of CUDA events in exports that do not record which process each is of.
--
-- requires: CUPTI_ACTIVITY_KIND_CUDA_EVENT(deviceId, streamId, correlationId, eventId)
SELECT
    record._rowid_ AS row_number,  -- order of the rows
    NULL AS process,  -- not recorded
    record.deviceId AS device_id,  -- device number as the process sees it
    record.streamId AS stream_id,  -- that the event was recorded on
    record.eventId AS event_id,  -- that was recorded
    NULL AS pairing,  -- not recorded
    record.correlationId AS correlation_id,  -- CUPTI's number of the recording call
    NULL AS completed_ns  -- not recorded
FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT AS record
