-- Copies between hosts and devices.
--
-- requires: rocpd_memory_copy(id, pid, start, end, dst_agent_id, src_agent_id, event_id)
SELECT
    copied.id AS row_number,  -- id of the copy
    copied.start AS start_ns,  -- start time, in ns on the node's clock
    copied."end" AS end_ns,  -- end time, on the same clock
    copied.pid AS process_id,  -- rocpd_info_process.id
    copied.dst_agent_id AS to_agent_id,  -- rocpd_info_agent.id of the destination
    copied.src_agent_id AS from_agent_id,  -- rocpd_info_agent.id of the source
    copied.event_id AS event_id  -- rocpd_event.id
FROM rocpd_memory_copy AS copied
