-- GPUs of the host, in exports that do not record PCI addresses.
--
-- requires: TARGET_INFO_GPU(id, cuDevice, name, uuid)
SELECT
    gpu._rowid_ AS row_number,  -- order of the rows
    gpu.id AS gpu_id,  -- number of the GPU on its host
    gpu.cuDevice AS device_id,  -- number that the CUDA driver gives the GPU
    gpu.name AS name,  -- product name
    gpu.uuid AS uuid,  -- unique id
    NULL AS pci  -- not recorded
FROM TARGET_INFO_GPU AS gpu
