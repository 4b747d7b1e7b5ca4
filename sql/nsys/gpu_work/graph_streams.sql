-- Streams of all CUDA graphs that were traced as a whole, in the order of graphs.sql.
--
-- requires: CUPTI_ACTIVITY_KIND_GRAPH_TRACE(start, end, streamId)
SELECT
    graph.start AS start_ns,  -- start time on the device
    graph."end" AS end_ns,  -- end time
    COALESCE(graph.streamId, -1) AS stream_id  -- stream number, as numbered in the process
FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS graph
ORDER BY graph._rowid_
