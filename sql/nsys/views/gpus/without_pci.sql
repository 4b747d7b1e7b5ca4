-- GPUs of exports that do not record their place on the bus.
--
-- requires: TARGET_INFO_GPU(id, cuDevice, name, uuid)
SELECT
    gpu._rowid_ AS row_number,
    gpu.id AS gpu_id,
    gpu.cuDevice AS device_id,
    gpu.name AS name,
    gpu.uuid AS uuid,
    NULL AS pci  -- not recorded
FROM TARGET_INFO_GPU AS gpu
