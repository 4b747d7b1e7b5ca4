-- Which GPU each process means by a device number (CUDA_VISIBLE_DEVICES renumbers them).
--
-- requires: TARGET_INFO_CUDA_DEVICE(gpuId, cudaId, pid, uuid)
SELECT
    device.pid AS pid,  -- operating-system process id
    device.cudaId AS device_id,  -- device number as the process sees it
    COALESCE(device.gpuId, -1) AS gpu_id,  -- TARGET_INFO_GPU.id
    COALESCE(device.uuid, '') AS uuid  -- unique id, of a MIG instance its own
FROM TARGET_INFO_CUDA_DEVICE AS device
WHERE device.pid IS NOT NULL AND device.cudaId IS NOT NULL
ORDER BY device.rowid
