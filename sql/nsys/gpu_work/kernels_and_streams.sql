-- Kernels in a range of rows, with streams, in the order of the export.
--
-- requires: kernels(row_number, start_ns, end_ns, device_id, process, correlation_id, name_id, stream_id)
SELECT
    kernel.start_ns AS start_ns,  -- start time on the device
    kernel.end_ns AS end_ns,  -- end time
    kernel.device_id AS device_id,  -- device number, as numbered in the process
    COALESCE(kernel.process, -1) AS process,  -- host id and process id, shifted left by 24 bits
    COALESCE(kernel.correlation_id, -1) AS correlation_id,  -- pairs with calls/all.sql
    COALESCE(kernel.name_id, -1) AS name_id,  -- StringIds.id of the full name
    COALESCE(kernel.stream_id, -1) AS stream_id  -- stream number, as numbered in the process
FROM kernels AS kernel
WHERE kernel.row_number BETWEEN $first AND $last
ORDER BY kernel.row_number
