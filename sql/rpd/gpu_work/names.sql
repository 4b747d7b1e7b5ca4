-- The names of kernels, and of kinds of work.
--
-- requires: rocpd_op(description_id, opType_id)
-- requires: rocpd_string(id, string)
SELECT
    named.id AS name_id,  -- its number
    named.string AS name  -- a kernel's demangled name, or KernelExecution, CopyHostToDevice ...
FROM rocpd_string AS named
WHERE
    named.id IN (SELECT work.description_id FROM rocpd_op AS work)
    OR named.id IN (SELECT work.opType_id FROM rocpd_op AS work)
ORDER BY named.id
