-- The node's processors as seen by a process.
--
-- requires: rocpd_info_agent(id, type, type_index, name, product_name)
SELECT
    agent.id AS id,  -- id
    agent.type AS type,  -- CPU, GPU or NIC
    agent.type_index AS type_index,  -- index among the agents of the same type
    COALESCE(NULLIF(agent.product_name, ''), agent.name) AS name  -- product name
FROM rocpd_info_agent AS agent
