-- The name of the recorded host. No other part of its environment is read.
--
-- requires: TARGET_INFO_SYSTEM_ENV(name, value)
SELECT env.value AS hostname  -- name that the host gives itself
FROM TARGET_INFO_SYSTEM_ENV AS env
WHERE env.name = 'Hostname'
ORDER BY env._rowid_
LIMIT 1
