-- Streams and queues of copies.
--
-- requires: rocpd_memory_copy(id, stream_id, queue_id)
SELECT
    copied.id AS row_number,  -- id of the copy
    copied.stream_id AS stream_id,  -- rocpd_info_stream.id
    copied.queue_id AS queue_id  -- rocpd_info_queue.id
FROM rocpd_memory_copy AS copied
