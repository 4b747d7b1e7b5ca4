-- Every wait of a stream or a host, in the order the export holds them.
--
-- What waits for what follows from which of stream and event a row names (CUPTI gives the other as
-- 2^32 - 1, read as -1). The numbers of syncType changed from version to version, and some exports
-- come with an ENUM_CUPTI_SYNC_TYPE that is not that of their rows, so that neither is read.
--
-- requires: waits(row_number, process, device_id, stream_id, event_id, pairing, correlation_id, start_ns)
SELECT
    COALESCE(wait.process, -1) AS process,  -- host id and process id, above 24 bits
    COALESCE(wait.device_id, -1) AS device_id,  -- device number as the process sees it
    COALESCE(wait.stream_id, -1) AS stream_id,  -- that waits, or that the host waits for
    COALESCE(wait.event_id, -1) AS event_id,  -- that is waited for
    COALESCE(wait.pairing, -1) AS pairing,  -- pairs with synchronisation/event_records.sql
    COALESCE(wait.correlation_id, -1) AS correlation_id,  -- pairs with calls/all.sql
    COALESCE(wait.start_ns, -1099511627776) AS start_ns  -- when the host began it; -2^40 unknown
FROM waits AS wait
ORDER BY wait.row_number
