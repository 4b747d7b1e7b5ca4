-- Launches of work by PyTorch's operators, with the id of the call that launched the work.
--
-- requires: PYTORCH_API(startNs, globalTid, connectionId, name, type)
-- requires: CONNECTION_IDS(id, connectionId)
SELECT
    CAST(operator.startNs AS INTEGER) AS start_ns,  -- start of the operator, in ns of UTC
    COALESCE(operator.globalTid, -1) AS global_tid,  -- process id in the high 32 bits, then thread
    link.connectionId AS connection_id,  -- CANN_API.connectionId of the launch
    COALESCE(operator.name, -1) AS name_id  -- STRING_IDS.id of the operator's name
FROM PYTORCH_API AS operator
INNER JOIN CONNECTION_IDS AS link ON operator.connectionId = link.id
WHERE operator.type = 50001
ORDER BY operator.startNs, link.connectionId
