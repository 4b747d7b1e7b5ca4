-- Session start on the host's monotonic clock.
--
-- requires: TARGET_INFO_SESSION_START_TIME(systemClockNs)
SELECT session.systemClockNs AS clock_ns  -- time in ns since the host booted
FROM TARGET_INFO_SESSION_START_TIME AS session
ORDER BY session._rowid_
LIMIT 1
