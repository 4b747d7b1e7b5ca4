-- Every call that recorded a CUDA event, in the order the export holds them.
--
-- requires: event_records(row_number, process, device_id, stream_id, event_id, pairing, correlation_id, completed_ns)
SELECT
    COALESCE(record.process, -1) AS process,  -- host id and process id, above 24 bits
    record.device_id AS device_id,  -- device number as the process sees it
    record.stream_id AS stream_id,  -- that the event was recorded on
    record.event_id AS event_id,  -- that was recorded
    COALESCE(record.pairing, -1) AS pairing,  -- pairs with synchronisation/waits.sql
    COALESCE(record.correlation_id, -1) AS correlation_id,  -- pairs with calls/all.sql
    COALESCE(record.completed_ns, -1) AS completed_ns  -- when it completed on the device
FROM event_records AS record
ORDER BY record.row_number
