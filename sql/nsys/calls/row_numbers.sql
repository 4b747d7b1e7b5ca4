-- The numbers of some rows of all.sql.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start)
SELECT
    call._rowid_ AS row_number,  -- id
    call.start AS start_ns  -- when the host entered the call
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE call._rowid_ BETWEEN $first AND $last
ORDER BY call._rowid_
