-- Queues of all kernels, in the order of kernels.sql.
--
-- requires: work(row_number, is_kernel)
-- requires: rocpd_op(id, queueId)
SELECT
    -1 AS stream_id,  -- not recorded
    CAST(COALESCE(op.queueId, -1) AS INTEGER) AS queue_id  -- number of the hardware queue
FROM work AS dispatch
INNER JOIN rocpd_op AS op ON dispatch.row_number = op.id
WHERE dispatch.is_kernel
ORDER BY dispatch.row_number
