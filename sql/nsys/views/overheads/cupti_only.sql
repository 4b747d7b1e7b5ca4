-- Overheads of the profiler, where nsys recorded none.
--
-- requires: CUPTI_ACTIVITY_KIND_OVERHEAD(start, end, globalTid)
SELECT
    1 AS source,
    cupti._rowid_ AS row_number,
    cupti.start AS start_ns,
    cupti."end" AS end_ns,
    cupti.globalTid >> 24 AS process
FROM CUPTI_ACTIVITY_KIND_OVERHEAD AS cupti
