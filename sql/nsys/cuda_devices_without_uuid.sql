-- Which GPU each process means by a device number, in exports that give no ids here.
--
-- requires: TARGET_INFO_CUDA_DEVICE(gpuId, cudaId, pid)
SELECT
    device.pid AS pid,  -- operating-system process id
    device.cudaId AS device_id,  -- device number as the process sees it
    COALESCE(device.gpuId, -1) AS gpu_id,  -- TARGET_INFO_GPU.id
    '' AS uuid  -- not recorded
FROM TARGET_INFO_CUDA_DEVICE AS device
WHERE device.pid IS NOT NULL AND device.cudaId IS NOT NULL
ORDER BY device.rowid
