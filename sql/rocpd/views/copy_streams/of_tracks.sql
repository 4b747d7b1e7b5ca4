-- Streams and queues of copies, of schema 4, which gives them by a track.
--
-- requires: rocpd_memory_copy(id, track_id)
-- requires: rocpd_track(id, stream_id, queue_id)
SELECT
    copied.id AS row_number,  -- the copy's own number
    track.stream_id AS stream_id,  -- rocpd_info_stream.id
    track.queue_id AS queue_id  -- rocpd_info_queue.id
FROM rocpd_memory_copy AS copied
LEFT JOIN rocpd_track AS track ON copied.track_id = track.id
