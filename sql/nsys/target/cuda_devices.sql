-- Which GPU each process means by a device number (CUDA_VISIBLE_DEVICES renumbers them).
--
-- requires: cuda_devices(row_number, pid, device_id, gpu_id, uuid)
SELECT
    device.pid AS pid,  -- operating-system process id
    device.device_id AS device_id,  -- device number as the process sees it
    COALESCE(device.gpu_id, -1) AS gpu_id,  -- as in gpus.sql
    COALESCE(device.uuid, '') AS uuid  -- unique id, of a MIG instance its own
FROM cuda_devices AS device
WHERE device.pid IS NOT NULL AND device.device_id IS NOT NULL
ORDER BY device.row_number
