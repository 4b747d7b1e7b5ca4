-- GPUs of exports of 2020 that do not record their place on the bus.
--
-- requires: TARGET_INFO_GPU(deviceId, name)
SELECT
    gpu._rowid_ AS row_number,
    gpu.deviceId AS gpu_id,
    gpu.deviceId AS device_id,
    gpu.name AS name,
    NULL AS uuid,  -- not recorded
    NULL AS pci  -- not recorded
FROM TARGET_INFO_GPU AS gpu
