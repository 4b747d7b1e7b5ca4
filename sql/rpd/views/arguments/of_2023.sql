-- Argument texts, from the table of all strings.
--
-- requires: rocpd_string(id, string)
SELECT
    given.id AS id,  -- id
    given.string AS text  -- arguments of a call, or the text of a range
FROM rocpd_string AS given
