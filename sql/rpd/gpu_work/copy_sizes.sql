-- The direction of every copy, in the order of copies.sql.
--
-- requires: work(row_number, is_kernel)
-- requires: rocpd_op(id, opType_id)
-- requires: rocpd_string(id, string)
SELECT
    -1 AS size,  -- number of bytes is not recorded with the work
    CASE
        WHEN kind.string GLOB '*Fill*' OR kind.string GLOB '*Memset*' THEN -1
        WHEN kind.string GLOB '*HostToDevice*' THEN 1
        WHEN kind.string GLOB '*DeviceToHost*' THEN 2
        WHEN kind.string GLOB '*DeviceToDevice*' THEN 3
        ELSE 0
    END AS direction  -- code of Direction in model/copies.py; -1 for a fill
FROM work AS copied
INNER JOIN rocpd_op AS op ON copied.row_number = op.id
LEFT JOIN rocpd_string AS kind ON op.opType_id = kind.id
WHERE NOT copied.is_kernel
ORDER BY copied.row_number
