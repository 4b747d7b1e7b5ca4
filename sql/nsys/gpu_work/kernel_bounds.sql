-- First and last row numbers of the kernel table. If the table is empty, there are no rows.
--
-- requires: CUPTI_ACTIVITY_KIND_KERNEL(start)
SELECT
    (SELECT MIN(other._rowid_) FROM CUPTI_ACTIVITY_KIND_KERNEL AS other) AS first_row,  -- row id
    kernel._rowid_ AS last_row,  -- row id
    kernel.start AS start_ns  -- start of the last event
FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel
ORDER BY kernel._rowid_ DESC
LIMIT 1
