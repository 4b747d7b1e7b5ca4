-- The GPUs that were recorded.
--
-- requires: agents(id, type, type_index, name)
SELECT
    agent.id AS agent_id,  -- its number
    COALESCE(agent.type_index, -1) AS device_id,  -- number among the GPUs; -1 unknown
    COALESCE(agent.name, '') AS name  -- of the product
FROM agents AS agent
WHERE agent.type = 'GPU'
ORDER BY agent.id
