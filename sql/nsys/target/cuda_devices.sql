-- The GPU that each device number of a process stands for (CUDA_VISIBLE_DEVICES renumbers GPUs).
--
-- requires: cuda_devices(row_number, pid, device_id, gpu_id, uuid)
SELECT
    device.pid AS pid,  -- process id of the operating system
    device.device_id AS device_id,  -- device number as the process sees it
    COALESCE(device.gpu_id, -1) AS gpu_id,  -- gpu_id in gpus.sql
    COALESCE(device.uuid, '') AS uuid  -- unique id of the GPU, or of the MIG instance
FROM cuda_devices AS device
WHERE device.pid IS NOT NULL AND device.device_id IS NOT NULL
ORDER BY device.row_number
