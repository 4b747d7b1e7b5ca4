-- No calls that copied memory, for traces without a table of them.
--
-- requires: rocpd_op(id)
SELECT
    op.id AS call_id,  -- of no row
    NULL AS size  -- not recorded
FROM rocpd_op AS op
WHERE FALSE
