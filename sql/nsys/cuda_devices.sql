-- Which GPU each process means by a device number (CUDA_VISIBLE_DEVICES renumbers them).
--
-- requires: TARGET_INFO_CUDA_DEVICE(gpuId, cudaId, pid)
SELECT
    device.pid AS pid,  -- operating-system process id
    device.cudaId AS device_id,  -- device number as the process sees it
    device.gpuId AS gpu_id  -- TARGET_INFO_GPU.id
FROM TARGET_INFO_CUDA_DEVICE AS device
WHERE device.pid IS NOT NULL AND device.cudaId IS NOT NULL AND device.gpuId IS NOT NULL
ORDER BY device.rowid
