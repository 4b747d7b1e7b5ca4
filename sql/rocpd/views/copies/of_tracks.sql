-- Copies between hosts and devices in schema 4, in which the track determines the process.
--
-- requires: rocpd_memory_copy(id, track_id, start, end, dst_agent_id, src_agent_id, event_id)
-- requires: rocpd_track(id, pid)
SELECT
    copied.id AS row_number,  -- id of the copy
    copied.start AS start_ns,  -- start time, in ns on the node's clock
    copied."end" AS end_ns,  -- end time, on the same clock
    track.pid AS process_id,  -- rocpd_info_process.id
    copied.dst_agent_id AS to_agent_id,  -- rocpd_info_agent.id of the destination
    copied.src_agent_id AS from_agent_id,  -- rocpd_info_agent.id of the source
    copied.event_id AS event_id  -- rocpd_event.id
FROM rocpd_memory_copy AS copied
LEFT JOIN rocpd_track AS track ON copied.track_id = track.id
