-- UTC at the session start, to which all times in the export are relative.
--
-- requires: TARGET_INFO_SESSION_START_TIME(utcEpochNs)
SELECT session.utcEpochNs AS utc_ns  -- UTC of the host in ns since 1970
FROM TARGET_INFO_SESSION_START_TIME AS session
ORDER BY session._rowid_
LIMIT 1
