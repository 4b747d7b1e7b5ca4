-- Overheads of the profiler: of nsys itself (source 0) and of CUPTI (source 1).
--
-- requires: PROFILER_OVERHEAD(start, end, globalTid)
-- requires: CUPTI_ACTIVITY_KIND_OVERHEAD(start, end, globalTid)
SELECT
    0 AS source,
    nsys._rowid_ AS row_number,
    nsys.start AS start_ns,
    nsys."end" AS end_ns,
    nsys.globalTid >> 24 AS process
FROM PROFILER_OVERHEAD AS nsys
UNION ALL
SELECT
    1 AS source,
    cupti._rowid_ AS row_number,
    cupti.start AS start_ns,
    cupti."end" AS end_ns,
    cupti.globalTid >> 24 AS process
FROM CUPTI_ACTIVITY_KIND_OVERHEAD AS cupti
