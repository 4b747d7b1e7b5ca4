-- Operators, annotations, functions and queue entries of PyTorch.
--
-- requires: PYTORCH_API(startNs, endNs, globalTid, name, type)
SELECT
    CAST(entry.startNs AS INTEGER) AS start_ns,  -- start of the range, in ns of UTC
    CAST(entry.endNs AS INTEGER) AS end_ns,  -- end of the range
    COALESCE(entry.globalTid, -1) AS global_tid,  -- process id in the high 32 bits, then thread id
    COALESCE(entry.name, -1) AS name_id,  -- STRING_IDS.id of the name
    COALESCE(entry.type, -1) AS kind  -- 50001 operator, 50002 queue, 50003 Python function
FROM PYTORCH_API AS entry
WHERE entry.type IN (50001, 50002, 50003)
ORDER BY entry.startNs, entry.endNs, entry.name
