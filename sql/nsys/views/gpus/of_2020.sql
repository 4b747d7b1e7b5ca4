-- GPUs of exports of 2020, which have one number, deviceId.
--
-- requires: TARGET_INFO_GPU(deviceId, name, busLocation)
SELECT
    gpu._rowid_ AS row_number,  -- order of the rows
    gpu.deviceId AS gpu_id,  -- number of the GPU on its host
    gpu.deviceId AS device_id,  -- the same number; the driver's is not recorded
    gpu.name AS name,  -- product name
    NULL AS uuid,  -- not recorded
    gpu.busLocation AS pci  -- place on the PCI bus
FROM TARGET_INFO_GPU AS gpu
