-- All CUDA event records, in the order of the export.
--
-- requires: event_records(row_number, process, device_id, stream_id, event_id, pairing, correlation_id, completed_ns)
SELECT
    COALESCE(record.process, -1) AS process,  -- host id and process id, shifted left by 24 bits
    COALESCE(record.device_id, -1) AS device_id,  -- device number, as numbered in the process
    COALESCE(record.stream_id, -1) AS stream_id,  -- stream on which the event was recorded
    COALESCE(record.event_id, -1) AS event_id,  -- CUDA event that was recorded
    COALESCE(record.pairing, -1) AS pairing,  -- pairs with synchronization/waits.sql
    COALESCE(record.correlation_id, -1) AS correlation_id,  -- pairs with calls/all.sql
    COALESCE(record.completed_ns, -1) AS completed_ns  -- completion time on the device
FROM event_records AS record
ORDER BY record.row_number
