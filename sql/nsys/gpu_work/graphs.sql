-- All CUDA graphs that were traced as a whole, with the columns of kernels.sql except the name.
--
-- requires: CUPTI_ACTIVITY_KIND_GRAPH_TRACE(start, end, deviceId, correlationId, globalPid)
SELECT
    graph.start AS start_ns,  -- start of the first node on the device
    graph."end" AS end_ns,  -- end of the last node
    graph.deviceId AS device_id,  -- device number, as numbered in the process
    COALESCE(graph.globalPid, -1) AS process,  -- host id and process id, shifted left by 24 bits
    COALESCE(graph.correlationId, -1) AS correlation_id  -- pairs with its launch in calls/all.sql
FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS graph
ORDER BY graph._rowid_
