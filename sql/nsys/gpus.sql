-- The GPUs of the host, by the number that device ids of CUPTI tables refer to.
--
-- requires: TARGET_INFO_GPU(id, name, uuid)
SELECT
    gpu.id AS gpu_id,  -- the host's number of the GPU
    COALESCE(gpu.name, '') AS name,  -- product name
    COALESCE(gpu.uuid, '') AS uuid  -- unique id
FROM TARGET_INFO_GPU AS gpu
ORDER BY gpu.rowid
