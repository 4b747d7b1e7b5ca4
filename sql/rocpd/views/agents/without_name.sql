-- The node's processors as seen by a process, without names.
--
-- requires: rocpd_info_agent(id, type, type_index)
SELECT
    agent.id AS id,  -- id
    agent.type AS type,  -- CPU, GPU or NIC
    agent.type_index AS type_index,  -- index among the agents of the same type
    NULL AS name  -- not recorded
FROM rocpd_info_agent AS agent
