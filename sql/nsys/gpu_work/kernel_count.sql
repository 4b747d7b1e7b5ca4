-- How many kernels the table holds; unlike a part of its rows, SQLite counts none of a damaged one.
--
-- requires: CUPTI_ACTIVITY_KIND_KERNEL(start)
SELECT COUNT(*) AS kernels  -- of all processes
FROM CUPTI_ACTIVITY_KIND_KERNEL
