-- GPUs of the host, in exports from 2020, which have a single number, deviceId.
--
-- requires: TARGET_INFO_GPU(deviceId, name, busLocation)
SELECT
    gpu._rowid_ AS row_number,  -- order of the rows
    gpu.deviceId AS gpu_id,  -- number of the GPU on its host
    gpu.deviceId AS device_id,  -- same as gpu_id; the driver's number is not recorded
    gpu.name AS name,  -- product name
    NULL AS uuid,  -- not recorded
    gpu.busLocation AS pci  -- place on the PCI bus
FROM TARGET_INFO_GPU AS gpu
