-- First and last row numbers of the CUDA API call table. If the table is empty, there are no rows.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start)
SELECT
    (SELECT MIN(other._rowid_) FROM CUPTI_ACTIVITY_KIND_RUNTIME AS other) AS first_row,  -- row id
    call._rowid_ AS last_row,  -- row id
    call.start AS start_ns  -- start of the last event
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
ORDER BY call._rowid_ DESC
LIMIT 1
