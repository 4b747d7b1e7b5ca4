-- UTC at the start of the session. Times in the export are relative to the start of the session.
--
-- requires: TARGET_INFO_SESSION_START_TIME(utcEpochNs)
SELECT session.utcEpochNs AS utc_ns  -- UTC of the host in ns since 1970
FROM TARGET_INFO_SESSION_START_TIME AS session
ORDER BY session._rowid_
LIMIT 1
