-- The first and the last row of the table of CUDA API calls, if it has rows.
--
-- requires: CUPTI_ACTIVITY_KIND_RUNTIME(start)
SELECT
    (SELECT MIN(other.rowid) FROM CUPTI_ACTIVITY_KIND_RUNTIME AS other) AS first_row,  -- its number
    call.rowid AS last_row,  -- its number
    call.start AS start_ns  -- when the last one began
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call
ORDER BY call.rowid DESC
LIMIT 1
