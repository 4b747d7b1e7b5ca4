-- When the session started: times in the export count from here.
--
-- requires: TARGET_INFO_SESSION_START_TIME(utcEpochNs)
SELECT session.utcEpochNs AS utc_ns  -- host's clock, nanoseconds since 1970
FROM TARGET_INFO_SESSION_START_TIME AS session
ORDER BY session._rowid_
LIMIT 1
