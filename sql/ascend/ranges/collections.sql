-- Times at which Python collected garbage.
--
-- requires: GC_RECORD(startNs, endNs, globalTid)
SELECT
    CAST(collection.startNs AS INTEGER) AS start_ns,  -- start of the collection, in ns of UTC
    CAST(collection.endNs AS INTEGER) AS end_ns,  -- end of the collection
    COALESCE(collection.globalTid, -1) AS global_tid  -- process id in the high 32 bits, then thread
FROM GC_RECORD AS collection
ORDER BY collection.startNs, collection.endNs
