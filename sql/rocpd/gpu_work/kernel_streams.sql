-- Streams and queues of all kernels, in the order of kernels.sql.
--
-- requires: dispatch_streams(row_number, stream_id, queue_id)
SELECT
    CAST(COALESCE(dispatch.stream_id, -1) AS INTEGER) AS stream_id,  -- number of the HIP stream
    CAST(COALESCE(dispatch.queue_id, -1) AS INTEGER) AS queue_id  -- number of the hardware queue
FROM dispatch_streams AS dispatch
ORDER BY dispatch.row_number
