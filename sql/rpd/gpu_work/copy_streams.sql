-- Queues of all copies and fills, in the order of copies.sql.
--
-- requires: work(row_number, is_kernel)
-- requires: rocpd_op(id, queueId)
SELECT
    -1 AS stream_id,  -- not recorded
    CAST(COALESCE(op.queueId, -1) AS INTEGER) AS queue_id  -- number of the hardware queue
FROM work AS copied
INNER JOIN rocpd_op AS op ON copied.row_number = op.id
WHERE NOT copied.is_kernel
ORDER BY copied.row_number
