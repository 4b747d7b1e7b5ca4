-- When CUPTI held a process up, for example to hand over a full buffer.
--
-- requires: CUPTI_ACTIVITY_KIND_OVERHEAD(start, end, globalTid)
SELECT
    held.start AS start_ns,  -- when it began
    held."end" AS end_ns,  -- when it was over
    COALESCE(held.globalTid, -1) >> 24 AS process  -- host id and process id
FROM CUPTI_ACTIVITY_KIND_OVERHEAD AS held
ORDER BY held.rowid
