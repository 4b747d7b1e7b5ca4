-- Streams and queues of kernels.
--
-- requires: rocpd_kernel_dispatch(id, stream_id, queue_id)
SELECT
    dispatch.id AS row_number,  -- id of the dispatch
    dispatch.stream_id AS stream_id,  -- rocpd_info_stream.id
    dispatch.queue_id AS queue_id  -- rocpd_info_queue.id
FROM rocpd_kernel_dispatch AS dispatch
