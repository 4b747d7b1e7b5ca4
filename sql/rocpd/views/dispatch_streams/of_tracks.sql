-- Streams and queues of kernels in schema 4, in which a track has a stream and a queue.
--
-- requires: rocpd_kernel_dispatch(id, track_id)
-- requires: rocpd_track(id, stream_id, queue_id)
SELECT
    dispatch.id AS row_number,  -- id of the dispatch
    track.stream_id AS stream_id,  -- rocpd_info_stream.id
    track.queue_id AS queue_id  -- rocpd_info_queue.id
FROM rocpd_kernel_dispatch AS dispatch
LEFT JOIN rocpd_track AS track ON dispatch.track_id = track.id
