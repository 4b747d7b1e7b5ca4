-- The node's processors as seen by a process, named by architecture.
--
-- requires: rocpd_info_agent(id, type, type_index, name)
SELECT
    agent.id AS id,  -- id
    agent.type AS type,  -- CPU, GPU or NIC
    agent.type_index AS type_index,  -- index among the agents of the same type
    agent.name AS name  -- for example gfx942
FROM rocpd_info_agent AS agent
