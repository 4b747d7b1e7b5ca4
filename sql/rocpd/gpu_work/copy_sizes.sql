-- Copy sizes, in the order of copies.sql.
--
-- requires: rocpd_memory_copy(id, size)
SELECT COALESCE(copied.size, -1) AS size  -- number of bytes
FROM rocpd_memory_copy AS copied
ORDER BY copied.id
