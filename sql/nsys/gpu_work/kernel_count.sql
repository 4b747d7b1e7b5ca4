-- How many kernels the table holds; unlike a part of its rows, SQLite counts none of a damaged one.
--
-- requires: CUPTI_ACTIVITY_KIND_KERNEL(deviceId)
SELECT
    kernel.deviceId AS device_id,  -- device number as the process sees it
    COUNT(*) AS kernels  -- that ran on devices of that number
FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel
GROUP BY kernel.deviceId
ORDER BY kernel.deviceId
