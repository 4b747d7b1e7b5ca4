-- The host's GPUs, in exports from 2020, which number GPUs only by deviceId.
--
-- requires: TARGET_INFO_GPU(deviceId, name, busLocation)
SELECT
    gpu._rowid_ AS row_number,  -- row number
    gpu.deviceId AS gpu_id,  -- number of the GPU on its host
    gpu.deviceId AS device_id,  -- same as gpu_id, because the driver's number is not recorded
    gpu.name AS name,  -- product name
    NULL AS uuid,  -- not recorded
    gpu.busLocation AS pci  -- PCI address
FROM TARGET_INFO_GPU AS gpu
