-- Sizes and directions of all memory copies, in the order of copies.sql.
--
-- requires: CUPTI_ACTIVITY_KIND_MEMCPY(start, end, bytes, copyKind)
SELECT
    copy.start AS start_ns,  -- start time on the device
    copy."end" AS end_ns,  -- end time
    COALESCE(copy.bytes, -1) AS size,  -- number of bytes
    COALESCE(copy.copyKind, -1) AS kind  -- ENUM_CUDA_MEMCPY_OPER
FROM CUPTI_ACTIVITY_KIND_MEMCPY AS copy
ORDER BY copy._rowid_
