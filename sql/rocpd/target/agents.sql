-- The GPUs that were recorded.
--
-- requires: agents(id, type, type_index, name)
SELECT
    agent.id AS agent_id,  -- id
    COALESCE(agent.type_index, -1) AS device_id,  -- number among the GPUs, or -1 if unknown
    COALESCE(agent.name, '') AS name  -- product name
FROM agents AS agent
WHERE agent.type = 'GPU'
ORDER BY agent.id
