-- Argument texts, one per row.
--
-- requires: rocpd_ustring(id, string)
SELECT
    given.id AS id,  -- id
    given.string AS text  -- arguments of a call, or the text of a range
FROM rocpd_ustring AS given
