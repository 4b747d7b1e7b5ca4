-- Number of kernels per device number. This table scan does not stop at damaged row numbers.
--
-- requires: CUPTI_ACTIVITY_KIND_KERNEL(deviceId)
SELECT
    kernel.deviceId AS device_id,  -- device number, as numbered in the process
    COUNT(*) AS kernels  -- number of kernels that ran on devices with this number
FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel
GROUP BY kernel.deviceId
ORDER BY kernel.deviceId
