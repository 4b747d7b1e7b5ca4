-- All memory copies on devices, in the order of the export.
--
-- Kinds 11 to 13 (CUDA_MEMCPY_KIND_UVM_HTOD, _DTOH, _DTOD) are page migrations: the driver moves
-- pages of managed memory when they are accessed. No call launches a page migration.
--
-- requires: copies(row_number, start_ns, end_ns, device_id, process, correlation_id, kind)
SELECT
    copy.start_ns AS start_ns,  -- start time on the device
    copy.end_ns AS end_ns,  -- end time
    copy.device_id AS device_id,  -- device number, as numbered in the process
    COALESCE(copy.process, -1) AS process,  -- host id and process id, shifted left by 24 bits
    COALESCE(copy.correlation_id, -1) AS correlation_id,  -- pairs with calls/all.sql
    COALESCE(copy.kind, -1) AS kind  -- ENUM_CUDA_MEMCPY_OPER
FROM copies AS copy
ORDER BY copy.row_number
