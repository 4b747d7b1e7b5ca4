-- Devices, with the numbers that processes give them, in exports whose table has no unique ids.
--
-- requires: TARGET_INFO_CUDA_DEVICE(gpuId, cudaId, pid)
SELECT
    device._rowid_ AS row_number,  -- order of the rows
    device.pid AS pid,  -- process id of the operating system
    device.cudaId AS device_id,  -- device number as the process sees it
    device.gpuId AS gpu_id,  -- TARGET_INFO_GPU.id
    NULL AS uuid  -- not recorded
FROM TARGET_INFO_CUDA_DEVICE AS device
