-- Number of kernels of each device. Damaged row numbers do not end a scan of the whole table early.
--
-- requires: CUPTI_ACTIVITY_KIND_KERNEL(deviceId)
SELECT
    kernel.deviceId AS device_id,  -- device number as the process sees it
    COUNT(*) AS kernels  -- that ran on devices of that number
FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel
GROUP BY kernel.deviceId
ORDER BY kernel.deviceId
