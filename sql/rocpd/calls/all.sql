-- Every call of a host, and every range, in the order in which they began to be recorded.
--
-- requires: host_regions(row_number, start_ns, end_ns, process_id, thread_id, name_id, event_id)
SELECT
    region.start_ns AS start_ns,  -- when the host entered the call, or opened the range
    region.end_ns AS end_ns,  -- when it returned, or closed the range
    COALESCE(region.process_id, -1) AS process_id,  -- number of the process
    COALESCE(region.thread_id, -1) AS thread_id,  -- number of the thread
    COALESCE(region.name_id, -1) AS name_id,  -- number of what names.sql gives
    COALESCE(region.event_id, -1) AS event_id  -- number of what events.sql gives
FROM host_regions AS region
ORDER BY region.row_number
