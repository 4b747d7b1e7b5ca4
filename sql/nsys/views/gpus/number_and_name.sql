-- The host's GPUs, in exports that record only numbers and names.
--
-- requires: TARGET_INFO_GPU(id, name)
SELECT
    gpu._rowid_ AS row_number,  -- row number
    gpu.id AS gpu_id,  -- number of the GPU on its host
    gpu.id AS device_id,  -- same as gpu_id, because the driver's number is not recorded
    gpu.name AS name,  -- product name
    NULL AS uuid,  -- not recorded
    NULL AS pci  -- not recorded
FROM TARGET_INFO_GPU AS gpu
