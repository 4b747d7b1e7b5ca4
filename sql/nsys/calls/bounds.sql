-- The first and the last row of the table of CUDA API calls, if it has rows.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start)
SELECT
    (SELECT MIN(other._rowid_) FROM CUPTI_ACTIVITY_KIND_RUNTIME AS other) AS first_row,  -- id
    call._rowid_ AS last_row,  -- id
    call.start AS start_ns  -- start of the last event
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
ORDER BY call._rowid_ DESC
LIMIT 1
