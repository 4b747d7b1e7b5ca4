-- Intervals in which nsys or CUPTI delayed a process, for example to write records.
--
-- requires: overheads(source, row_number, start_ns, end_ns, thread)
SELECT
    overhead.start_ns AS start_ns,  -- start time
    overhead.end_ns AS end_ns,  -- end time
    COALESCE(overhead.thread, -1) AS thread  -- host id, process id and thread id
FROM overheads AS overhead
WHERE overhead.start_ns IS NOT NULL AND overhead.end_ns IS NOT NULL
ORDER BY overhead.source, overhead.row_number
