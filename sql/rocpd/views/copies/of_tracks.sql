-- Copies between hosts and devices, of schema 4, which gives their process by a track.
--
-- requires: rocpd_memory_copy(id, track_id, start, end, dst_agent_id, src_agent_id, event_id)
-- requires: rocpd_track(id, pid)
SELECT
    copied.id AS row_number,  -- the copy's own number
    copied.start AS start_ns,  -- when it began, ns of the node's clock
    copied."end" AS end_ns,  -- when it finished, on the same clock
    track.pid AS process_id,  -- rocpd_info_process.id
    copied.dst_agent_id AS to_agent_id,  -- rocpd_info_agent.id of where it went
    copied.src_agent_id AS from_agent_id,  -- rocpd_info_agent.id of where it came from
    copied.event_id AS event_id  -- rocpd_event.id
FROM rocpd_memory_copy AS copied
LEFT JOIN rocpd_track AS track ON copied.track_id = track.id
