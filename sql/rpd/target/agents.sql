-- The GPUs that ran work.
--
-- requires: rocpd_op(gpuId)
SELECT DISTINCT
    op.gpuId AS agent_id,  -- id
    op.gpuId AS device_id,  -- index among the GPUs
    '' AS name  -- not recorded
FROM rocpd_op AS op
WHERE op.gpuId IS NOT NULL
ORDER BY op.gpuId
