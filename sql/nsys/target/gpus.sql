-- The host's GPUs, with the device numbers that CUPTI tables use.
--
-- requires: gpus(row_number, gpu_id, device_id, name, uuid, pci)
SELECT
    gpu.gpu_id AS gpu_id,  -- number of the GPU on its host
    COALESCE(gpu.device_id, -1) AS device_id,  -- number of the GPU in the CUDA driver
    COALESCE(gpu.name, '') AS name,  -- product name
    COALESCE(gpu.uuid, '') AS uuid,  -- UUID
    COALESCE(gpu.pci, '') AS pci  -- PCI address
FROM gpus AS gpu
WHERE gpu.gpu_id IS NOT NULL
ORDER BY gpu.row_number
