-- Overheads of the profiler, where CUPTI recorded none.
--
-- requires: PROFILER_OVERHEAD(start, end, globalTid)
SELECT
    0 AS source,
    nsys._rowid_ AS row_number,
    nsys.start AS start_ns,
    nsys."end" AS end_ns,
    nsys.globalTid >> 24 AS process
FROM PROFILER_OVERHEAD AS nsys
