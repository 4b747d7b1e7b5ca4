-- The GPUs of the host, with the numbers that device ids in CUPTI tables refer to.
--
-- requires: gpus(row_number, gpu_id, device_id, name, uuid, pci)
SELECT
    gpu.gpu_id AS gpu_id,  -- the host's number of the GPU
    COALESCE(gpu.device_id, -1) AS device_id,  -- the CUDA driver's number
    COALESCE(gpu.name, '') AS name,  -- product name
    COALESCE(gpu.uuid, '') AS uuid,  -- unique id
    COALESCE(gpu.pci, '') AS pci  -- place on the bus
FROM gpus AS gpu
WHERE gpu.gpu_id IS NOT NULL
ORDER BY gpu.row_number
