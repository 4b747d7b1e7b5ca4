-- Every kernel that ran on a device; some rows, in exports that do not say which process launched it.
--
-- requires: CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, correlationId, demangledName)
SELECT
    kernel.start AS start_ns,  -- when the kernel began on the device
    kernel."end" AS end_ns,  -- when it finished
    kernel.deviceId AS device_id,  -- device number as the process sees it
    -1 AS process,  -- not recorded
    COALESCE(kernel.correlationId, -1) AS correlation_id,  -- pairs with calls.sql
    kernel.demangledName AS name_id  -- StringIds.id of the full name
FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel
WHERE kernel.rowid BETWEEN :first AND :last
ORDER BY kernel.rowid
