-- Kernel names.
--
-- requires: rocpd_op(description_id)
-- requires: rocpd_string(id, string)
SELECT
    named.id AS kernel_id,  -- id
    named.string AS name  -- demangled
FROM rocpd_string AS named
WHERE named.id IN (SELECT op.description_id FROM rocpd_op AS op)
ORDER BY named.id
