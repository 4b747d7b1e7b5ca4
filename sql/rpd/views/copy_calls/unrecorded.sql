-- An empty table of the calls that copied memory, for traces without such a table.
--
-- requires: rocpd_op(id)
SELECT
    op.id AS call_id,  -- NULL, because there are no rows
    NULL AS size  -- not recorded
FROM rocpd_op AS op
WHERE FALSE
