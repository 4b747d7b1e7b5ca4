-- Communication operations in databases that contain neither device nor type.
--
-- requires: COMMUNICATION_OP(startNs, endNs, connectionId, opName, groupName, dataType, count)
SELECT
    operation.startNs AS start_ns,  -- start time on the device, in ns of UTC
    operation.endNs AS end_ns,  -- end time, on the same clock
    NULL AS device_id,  -- number of the device
    operation.connectionId AS connection_id,  -- CANN_API.connectionId of the launch
    operation.opName AS name_id,  -- STRING_IDS.id of a name such as hcom_allReduce__428_0_1
    NULL AS type_id,  -- STRING_IDS.id of a type such as hcom_allReduce_
    operation.groupName AS group_id,  -- STRING_IDS.id of the communicator
    operation.dataType AS data_type,  -- type of the elements, an HcclDataType
    operation.count AS element_count  -- number of elements, as given to HCCL
FROM COMMUNICATION_OP AS operation
