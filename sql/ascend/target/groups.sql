-- The process groups, as JSON.
--
-- requires: META_DATA(name, value)
SELECT fact.value AS process_groups  -- ranks of each communicator
FROM META_DATA AS fact
WHERE fact.name = 'parallel_group_info'
ORDER BY fact.value
