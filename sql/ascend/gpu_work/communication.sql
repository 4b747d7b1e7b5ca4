-- Communication operations that devices executed, from the first to the last of their tasks.
--
-- requires: communication_operations(start_ns, end_ns, device_id, connection_id, name_id, type_id)
SELECT
    CAST(operation.start_ns AS INTEGER) AS start_ns,  -- start time on the device, in ns of UTC
    CAST(operation.end_ns AS INTEGER) AS end_ns,  -- end time, on the same clock
    COALESCE(operation.device_id, -1) AS device_id,  -- number of the device, or -1 if unknown
    COALESCE(operation.connection_id, -1) AS connection_id,  -- pairs with calls/all.sql
    COALESCE(operation.name_id, -1) AS name_id,  -- STRING_IDS.id of the operation's name
    COALESCE(operation.type_id, -1) AS type_id  -- STRING_IDS.id of its type, or -1 if unknown
FROM communication_operations AS operation
ORDER BY operation.start_ns, operation.name_id
