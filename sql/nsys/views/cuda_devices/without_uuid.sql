-- CUDA devices, with the numbers that processes use for them, in exports without UUIDs.
--
-- requires: TARGET_INFO_CUDA_DEVICE(gpuId, cudaId, pid)
SELECT
    device._rowid_ AS row_number,  -- row number
    device.pid AS pid,  -- process id in the operating system
    device.cudaId AS device_id,  -- device number, as numbered in the process
    device.gpuId AS gpu_id,  -- TARGET_INFO_GPU.id
    NULL AS uuid  -- not recorded
FROM TARGET_INFO_CUDA_DEVICE AS device
