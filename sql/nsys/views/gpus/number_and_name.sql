-- GPUs of exports that record only their numbers and names.
--
-- requires: TARGET_INFO_GPU(id, name)
SELECT
    gpu._rowid_ AS row_number,
    gpu.id AS gpu_id,
    gpu.id AS device_id,
    gpu.name AS name,
    NULL AS uuid,  -- not recorded
    NULL AS pci  -- not recorded
FROM TARGET_INFO_GPU AS gpu
