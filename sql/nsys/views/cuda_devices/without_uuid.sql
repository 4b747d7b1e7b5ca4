-- Devices of exports that do not record their unique ids here.
--
-- requires: TARGET_INFO_CUDA_DEVICE(gpuId, cudaId, pid)
SELECT
    device._rowid_ AS row_number,
    device.pid AS pid,
    device.cudaId AS device_id,
    device.gpuId AS gpu_id,
    NULL AS uuid  -- not recorded
FROM TARGET_INFO_CUDA_DEVICE AS device
