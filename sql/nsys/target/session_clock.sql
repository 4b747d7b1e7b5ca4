-- When the session started, on the host's clock that never jumps.
--
-- requires: TARGET_INFO_SESSION_START_TIME(systemClockNs)
SELECT session.systemClockNs AS clock_ns  -- nanoseconds since the host booted
FROM TARGET_INFO_SESSION_START_TIME AS session
ORDER BY session._rowid_
LIMIT 1
