-- The recorded host's name, and nothing else of its environment.
--
-- requires: TARGET_INFO_SYSTEM_ENV(name, value)
SELECT env.value AS hostname  -- as the host calls itself
FROM TARGET_INFO_SYSTEM_ENV AS env
WHERE env.name = 'Hostname'
ORDER BY env._rowid_
LIMIT 1
