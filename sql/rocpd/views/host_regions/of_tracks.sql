-- Host calls and ranges in schema 4, in which the track determines the thread.
--
-- requires: rocpd_region(id, track_id, start, end, name_id, event_id)
-- requires: rocpd_track(id, pid, tid)
SELECT
    region.id AS row_number,  -- id of the region
    region.start AS start_ns,  -- start of the call or range, in ns on the node's clock
    region."end" AS end_ns,  -- end of the call or range, on the same clock
    track.pid AS process_id,  -- rocpd_info_process.id
    track.tid AS thread_id,  -- rocpd_info_thread.id
    region.name_id AS name_id,  -- rocpd_string.id of the function
    region.event_id AS event_id  -- rocpd_event.id
FROM rocpd_region AS region
LEFT JOIN rocpd_track AS track ON region.track_id = track.id
