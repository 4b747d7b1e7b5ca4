-- The GPUs of the host in exports that tell no more than their numbers and names.
--
-- requires: TARGET_INFO_GPU(id, name)
SELECT
    gpu.id AS gpu_id,  -- the host's number of the GPU
    gpu.id AS device_id,  -- the CUDA driver's number
    COALESCE(gpu.name, '') AS name,  -- product name
    '' AS uuid,  -- unique id
    '' AS pci  -- place on the bus
FROM TARGET_INFO_GPU AS gpu
ORDER BY gpu.rowid
