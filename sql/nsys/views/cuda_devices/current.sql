-- Devices as processes number them.
--
-- requires: TARGET_INFO_CUDA_DEVICE(gpuId, cudaId, pid, uuid)
SELECT
    device._rowid_ AS row_number,
    device.pid AS pid,
    device.cudaId AS device_id,
    device.gpuId AS gpu_id,
    device.uuid AS uuid
FROM TARGET_INFO_CUDA_DEVICE AS device
