-- The host's GPUs.
--
-- requires: TARGET_INFO_GPU(id, cuDevice, name, uuid, busLocation)
SELECT
    gpu._rowid_ AS row_number,  -- row number
    gpu.id AS gpu_id,  -- number of the GPU on its host
    gpu.cuDevice AS device_id,  -- number of the GPU in the CUDA driver
    gpu.name AS name,  -- product name
    gpu.uuid AS uuid,  -- UUID
    gpu.busLocation AS pci  -- PCI address
FROM TARGET_INFO_GPU AS gpu
