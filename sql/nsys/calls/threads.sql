-- The threads of the first and of the last of some calls.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(globalTid)
SELECT COALESCE(call.globalTid, -1) AS thread  -- host id, process id and thread id
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE call._rowid_ IN (:first, :last)
ORDER BY call._rowid_
