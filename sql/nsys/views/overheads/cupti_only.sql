-- Profiler overheads in exports that contain only CUPTI overheads.
--
-- requires: CUPTI_ACTIVITY_KIND_OVERHEAD(start, end, globalTid)
SELECT
    1 AS source,  -- 0: nsys, 1: CUPTI
    cupti._rowid_ AS row_number,  -- row number in the table of the source
    cupti.start AS start_ns,  -- start time, in ns since the session start
    cupti."end" AS end_ns,  -- end time, on the same clock
    cupti.globalTid AS thread  -- host id, process id and thread id
FROM CUPTI_ACTIVITY_KIND_OVERHEAD AS cupti
