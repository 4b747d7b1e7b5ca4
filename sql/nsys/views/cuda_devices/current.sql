-- CUDA devices, with the numbers that processes use for them.
--
-- requires: TARGET_INFO_CUDA_DEVICE(gpuId, cudaId, pid, uuid)
SELECT
    device._rowid_ AS row_number,  -- row number
    device.pid AS pid,  -- process id in the operating system
    device.cudaId AS device_id,  -- device number, as numbered in the process
    device.gpuId AS gpu_id,  -- TARGET_INFO_GPU.id
    device.uuid AS uuid  -- UUID of the GPU or MIG instance
FROM TARGET_INFO_CUDA_DEVICE AS device
