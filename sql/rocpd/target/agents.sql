-- The recorded GPUs.
--
-- requires: agents(id, type, type_index, name)
SELECT
    agent.id AS agent_id,  -- id
    COALESCE(agent.type_index, -1) AS device_id,  -- index among the GPUs, or -1 if unknown
    COALESCE(agent.name, '') AS name  -- product name
FROM agents AS agent
WHERE agent.type = 'GPU'
ORDER BY agent.id
