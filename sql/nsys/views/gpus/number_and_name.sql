-- GPUs of exports that record only their numbers and names.
--
-- requires: TARGET_INFO_GPU(id, name)
SELECT
    gpu._rowid_ AS row_number,  -- order of the rows
    gpu.id AS gpu_id,  -- number of the GPU on its host
    gpu.id AS device_id,  -- the same number; the driver's is not recorded
    gpu.name AS name,  -- product name
    NULL AS uuid,  -- not recorded
    NULL AS pci  -- not recorded
FROM TARGET_INFO_GPU AS gpu
