-- All host calls and ranges, sorted by id.
--
-- requires: host_regions(row_number, start_ns, end_ns, process_id, thread_id, name_id, event_id)
SELECT
    region.start_ns AS start_ns,  -- start of the call or range
    region.end_ns AS end_ns,  -- end of the call or range
    COALESCE(region.process_id, -1) AS process_id,  -- id of the process
    COALESCE(region.thread_id, -1) AS thread_id,  -- id of the thread
    COALESCE(region.name_id, -1) AS name_id,  -- id of a name in names.sql
    COALESCE(region.event_id, -1) AS event_id  -- id of an event in events.sql
FROM host_regions AS region
ORDER BY region.row_number
