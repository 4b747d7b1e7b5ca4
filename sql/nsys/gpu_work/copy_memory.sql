-- Source and target memory kinds of all memory copies, in the order of copies.sql.
--
-- requires: CUPTI_ACTIVITY_KIND_MEMCPY(start, end, srcKind, dstKind)
SELECT
    copy.start AS start_ns,  -- start time on the device
    copy."end" AS end_ns,  -- end time
    COALESCE(copy.srcKind, -1) AS source,  -- ENUM_CUDA_MEM_KIND
    COALESCE(copy.dstKind, -1) AS target  -- ENUM_CUDA_MEM_KIND
FROM CUPTI_ACTIVITY_KIND_MEMCPY AS copy
ORDER BY copy._rowid_
