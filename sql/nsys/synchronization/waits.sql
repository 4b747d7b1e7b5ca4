-- All stream waits and host waits, in the order of the export.
--
-- The kind of wait depends on whether a row has a stream, an event or both. For a missing stream or
-- event, CUPTI writes 2^32 - 1, which is read as -1. syncType and ENUM_CUPTI_SYNC_TYPE are not
-- read, because the codes differ between versions and do not match the rows in some exports.
--
-- requires: waits(row_number, process, device_id, stream_id, event_id, pairing, correlation_id, start_ns)
SELECT
    COALESCE(wait.process, -1) AS process,  -- host id and process id, shifted left by 24 bits
    COALESCE(wait.device_id, -1) AS device_id,  -- device number, as numbered in the process
    COALESCE(wait.stream_id, -1) AS stream_id,  -- waiting or awaited stream
    COALESCE(wait.event_id, -1) AS event_id,  -- awaited CUDA event
    COALESCE(wait.pairing, -1) AS pairing,  -- pairs with synchronization/event_records.sql
    COALESCE(wait.correlation_id, -1) AS correlation_id,  -- pairs with calls/all.sql
    COALESCE(wait.start_ns, -1099511627776) AS start_ns  -- host start, or -2^40 if unknown
FROM waits AS wait
ORDER BY wait.row_number
