-- The GPUs of the host, by the number that device ids of CUPTI tables refer to.
--
-- requires: TARGET_INFO_GPU(id, cuDevice, name, uuid, busLocation)
SELECT
    gpu.id AS gpu_id,  -- the host's number of the GPU
    gpu.cuDevice AS device_id,  -- the CUDA driver's number
    COALESCE(gpu.name, '') AS name,  -- product name
    COALESCE(gpu.uuid, '') AS uuid,  -- unique id
    COALESCE(gpu.busLocation, '') AS pci  -- place on the bus
FROM TARGET_INFO_GPU AS gpu
ORDER BY gpu.rowid
