-- Streams and queues of kernels, of schema 4, which gives them by a track.
--
-- requires: rocpd_kernel_dispatch(id, track_id)
-- requires: rocpd_track(id, stream_id, queue_id)
SELECT
    dispatch.id AS row_number,  -- the dispatch's own number
    track.stream_id AS stream_id,  -- rocpd_info_stream.id
    track.queue_id AS queue_id  -- rocpd_info_queue.id
FROM rocpd_kernel_dispatch AS dispatch
LEFT JOIN rocpd_track AS track ON dispatch.track_id = track.id
