-- First and last row number of the CUDA API call table. No rows if the table is empty.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start)
SELECT
    (SELECT MIN(other._rowid_) FROM CUPTI_ACTIVITY_KIND_RUNTIME AS other) AS first_row,  -- row id
    call._rowid_ AS last_row,  -- row id
    call.start AS start_ns  -- start of the last event
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
ORDER BY call._rowid_ DESC
LIMIT 1
