-- The recorded nodes.
--
-- requires: rocpd_info_node(id, hostname, machine_id)
SELECT
    node.id AS node_id,  -- id
    node.hostname AS hostname,  -- name of the host
    node.machine_id AS machine_id  -- machine id in the operating system
FROM rocpd_info_node AS node
ORDER BY node.id
