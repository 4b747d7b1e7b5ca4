-- Kernels of exports that do not record which process launched each.
--
-- requires: CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, correlationId, demangledName)
SELECT
    kernel._rowid_ AS row_number,
    kernel.start AS start_ns,
    kernel."end" AS end_ns,
    kernel.deviceId AS device_id,
    NULL AS process,  -- not recorded
    kernel.correlationId AS correlation_id,
    kernel.demangledName AS name_id
FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel
