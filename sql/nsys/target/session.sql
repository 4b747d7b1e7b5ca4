-- UTC time of the session start. All times in the export are relative to the session start.
--
-- requires: TARGET_INFO_SESSION_START_TIME(utcEpochNs)
SELECT session.utcEpochNs AS utc_ns  -- UTC time on the host, in ns since 1970
FROM TARGET_INFO_SESSION_START_TIME AS session
ORDER BY session._rowid_
LIMIT 1
