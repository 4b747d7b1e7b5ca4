-- GPUs of the host.
--
-- requires: TARGET_INFO_GPU(id, cuDevice, name, uuid, busLocation)
SELECT
    gpu._rowid_ AS row_number,
    gpu.id AS gpu_id,
    gpu.cuDevice AS device_id,
    gpu.name AS name,
    gpu.uuid AS uuid,
    gpu.busLocation AS pci
FROM TARGET_INFO_GPU AS gpu
