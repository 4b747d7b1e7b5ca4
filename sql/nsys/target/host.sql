-- Hostname of the profiled host. Nothing else in the table of its environment is read.
--
-- requires: TARGET_INFO_SYSTEM_ENV(name, value)
SELECT env.value AS hostname  -- hostname
FROM TARGET_INFO_SYSTEM_ENV AS env
WHERE env.name = 'Hostname'
ORDER BY env._rowid_
LIMIT 1
