-- When the session started. Times in the export are relative to it.
--
-- requires: TARGET_INFO_SESSION_START_TIME(utcEpochNs)
SELECT session.utcEpochNs AS utc_ns  -- host's UTC clock, ns since 1970
FROM TARGET_INFO_SESSION_START_TIME AS session
ORDER BY session._rowid_
LIMIT 1
