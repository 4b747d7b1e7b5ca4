-- Row numbers of the calls in a range of rows, in the order of all.sql.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start)
SELECT
    call._rowid_ AS row_number,  -- row number
    call.start AS start_ns  -- start of the call
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
WHERE call._rowid_ BETWEEN $first AND $last
ORDER BY call._rowid_
