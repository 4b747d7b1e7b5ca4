-- The recorded devices.
--
-- requires: NPU_INFO(id, name)
SELECT
    device.id AS device_id,  -- number of the device in its host
    device.name AS name  -- model
FROM NPU_INFO AS device
ORDER BY device.id
