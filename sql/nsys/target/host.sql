-- Hostname of the profiled machine. Other values in the environment table are not read.
--
-- requires: TARGET_INFO_SYSTEM_ENV(name, value)
SELECT env.value AS hostname  -- hostname
FROM TARGET_INFO_SYSTEM_ENV AS env
WHERE env.name = 'Hostname'
ORDER BY env._rowid_
LIMIT 1
