-- Profiler overheads in exports that contain only nsys overheads.
--
-- requires: PROFILER_OVERHEAD(start, end, globalTid)
SELECT
    0 AS source,  -- 0: nsys, 1: CUPTI
    nsys._rowid_ AS row_number,  -- row number in the table of the source
    nsys.start AS start_ns,  -- start time, in ns since the session start
    nsys."end" AS end_ns,  -- end time, on the same clock
    nsys.globalTid AS thread  -- host id, process id and thread id
FROM PROFILER_OVERHEAD AS nsys
