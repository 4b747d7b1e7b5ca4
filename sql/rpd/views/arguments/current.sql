-- Texts of arguments, of which each row has its own.
--
-- requires: rocpd_ustring(id, string)
SELECT
    given.id AS id,  -- its number
    given.string AS text  -- arguments of a call, or the text of a range
FROM rocpd_ustring AS given
