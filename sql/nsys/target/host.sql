-- Hostname of the profiled host. Nothing else about the host is read.
--
-- requires: TARGET_INFO_SYSTEM_ENV(name, value)
SELECT env.value AS hostname  -- hostname
FROM TARGET_INFO_SYSTEM_ENV AS env
WHERE env.name = 'Hostname'
ORDER BY env._rowid_
LIMIT 1
