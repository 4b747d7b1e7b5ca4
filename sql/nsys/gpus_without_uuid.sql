-- The GPUs of the host in exports that hold no UUID.
--
-- requires: TARGET_INFO_GPU(id, name)
SELECT
    gpu.id AS gpu_id,  -- the host's number of the GPU
    COALESCE(gpu.name, '') AS name,  -- product name
    '' AS uuid  -- not recorded
FROM TARGET_INFO_GPU AS gpu
ORDER BY gpu.rowid
