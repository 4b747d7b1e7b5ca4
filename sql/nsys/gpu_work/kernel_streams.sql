-- The stream of every kernel; some rows, in the order of kernels.sql.
--
-- requires: CUPTI_ACTIVITY_KIND_KERNEL(start, end, streamId)
SELECT
    kernel.start AS start_ns,  -- when it began on the device
    kernel."end" AS end_ns,  -- when it finished
    COALESCE(kernel.streamId, -1) AS stream_id  -- stream number as the process's device sees it
FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel
WHERE kernel._rowid_ BETWEEN $first AND $last
ORDER BY kernel._rowid_
