-- Compute tasks that devices executed.
--
-- Other tasks, such as events and the parts of communication operations, are left out.
--
-- requires: TASK(startNs, endNs, deviceId, connectionId, globalTaskId, streamId)
-- requires: COMPUTE_TASK_INFO(globalTaskId, name)
SELECT
    CAST(task.startNs AS INTEGER) AS start_ns,  -- start time on the device, in ns of UTC
    CAST(task.endNs AS INTEGER) AS end_ns,  -- end time, on the same clock
    COALESCE(task.deviceId, -1) AS device_id,  -- number of the device in its host
    COALESCE(task.connectionId, -1) AS connection_id,  -- pairs with calls/all.sql
    COALESCE(info.name, -1) AS name_id,  -- STRING_IDS.id of the operator's name
    COALESCE(task.streamId, -1) AS stream_id  -- stream number
FROM TASK AS task
INNER JOIN COMPUTE_TASK_INFO AS info ON task.globalTaskId = info.globalTaskId
ORDER BY task.startNs, task.globalTaskId
