-- The GPU for each device number in each process. CUDA_VISIBLE_DEVICES may renumber GPUs.
--
-- requires: cuda_devices(row_number, pid, device_id, gpu_id, uuid)
SELECT
    device.pid AS pid,  -- process id in the operating system
    device.device_id AS device_id,  -- device number, as numbered in the process
    COALESCE(device.gpu_id, -1) AS gpu_id,  -- gpu_id in gpus.sql
    COALESCE(device.uuid, '') AS uuid  -- UUID of the GPU or MIG instance
FROM cuda_devices AS device
WHERE device.pid IS NOT NULL AND device.device_id IS NOT NULL
ORDER BY device.row_number
