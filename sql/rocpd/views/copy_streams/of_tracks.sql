-- Streams and queues of copies in schema 4, in which a track has a stream and a queue.
--
-- requires: rocpd_memory_copy(id, track_id)
-- requires: rocpd_track(id, stream_id, queue_id)
SELECT
    copied.id AS row_number,  -- id of the copy
    track.stream_id AS stream_id,  -- rocpd_info_stream.id
    track.queue_id AS queue_id  -- rocpd_info_queue.id
FROM rocpd_memory_copy AS copied
LEFT JOIN rocpd_track AS track ON copied.track_id = track.id
