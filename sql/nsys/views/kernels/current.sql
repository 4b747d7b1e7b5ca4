-- Kernels.
--
-- requires: CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, correlationId, globalPid, demangledName)
SELECT
    kernel._rowid_ AS row_number,
    kernel.start AS start_ns,
    kernel."end" AS end_ns,
    kernel.deviceId AS device_id,
    kernel.globalPid >> 24 AS process,
    kernel.correlationId AS correlation_id,
    kernel.demangledName AS name_id
FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel
