-- GPUs of exports of 2020, which have one number, deviceId.
--
-- requires: TARGET_INFO_GPU(deviceId, name, busLocation)
SELECT
    gpu._rowid_ AS row_number,
    gpu.deviceId AS gpu_id,
    gpu.deviceId AS device_id,
    gpu.name AS name,
    NULL AS uuid,  -- not recorded
    gpu.busLocation AS pci
FROM TARGET_INFO_GPU AS gpu
