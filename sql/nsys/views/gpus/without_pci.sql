-- The host's GPUs, in exports that do not record PCI addresses.
--
-- requires: TARGET_INFO_GPU(id, cuDevice, name, uuid)
SELECT
    gpu._rowid_ AS row_number,  -- row number
    gpu.id AS gpu_id,  -- number of the GPU on its host
    gpu.cuDevice AS device_id,  -- number of the GPU in the CUDA driver
    gpu.name AS name,  -- product name
    gpu.uuid AS uuid,  -- UUID
    NULL AS pci  -- not recorded
FROM TARGET_INFO_GPU AS gpu
