-- Streams and queues of all copies, in the order of copies.sql.
--
-- requires: copy_streams(row_number, stream_id, queue_id)
SELECT
    CAST(COALESCE(copied.stream_id, -1) AS INTEGER) AS stream_id,  -- number of the HIP stream
    CAST(COALESCE(copied.queue_id, -1) AS INTEGER) AS queue_id  -- number of the hardware queue
FROM copy_streams AS copied
ORDER BY copied.row_number
