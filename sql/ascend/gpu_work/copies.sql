-- Copies that devices executed.
--
-- requires: TASK(startNs, endNs, deviceId, connectionId, globalTaskId, streamId)
-- requires: MEMCPY_INFO(globalTaskId, size, memcpyOperation)
SELECT
    CAST(task.startNs AS INTEGER) AS start_ns,  -- start time on the device, in ns of UTC
    CAST(task.endNs AS INTEGER) AS end_ns,  -- end time, on the same clock
    COALESCE(task.deviceId, -1) AS device_id,  -- number of the device in its host
    COALESCE(task.connectionId, -1) AS connection_id,  -- pairs with calls/all.sql
    COALESCE(task.streamId, -1) AS stream_id,  -- stream number
    CAST(COALESCE(info.size, -1) AS INTEGER) AS size,  -- number of bytes
    CAST(COALESCE(info.memcpyOperation, -1) AS INTEGER) AS operation  -- direction of the copy
FROM TASK AS task
INNER JOIN MEMCPY_INFO AS info ON task.globalTaskId = info.globalTaskId
ORDER BY task.startNs, task.globalTaskId
