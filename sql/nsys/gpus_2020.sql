-- The GPUs of the host in exports of 2020, which call the number deviceId.
--
-- requires: TARGET_INFO_GPU(deviceId, name, busLocation)
SELECT
    gpu.deviceId AS gpu_id,  -- the host's number of the GPU
    gpu.deviceId AS device_id,  -- the CUDA driver's number
    COALESCE(gpu.name, '') AS name,  -- product name
    '' AS uuid,  -- unique id
    COALESCE(gpu.busLocation, '') AS pci  -- place on the bus
FROM TARGET_INFO_GPU AS gpu
ORDER BY gpu.rowid
