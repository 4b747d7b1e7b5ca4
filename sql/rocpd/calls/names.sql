-- The names of functions.
--
-- requires: host_regions(name_id)
-- requires: rocpd_string(id, string)
SELECT
    named.id AS name_id,  -- its number
    named.string AS name  -- for example hipLaunchKernel
FROM rocpd_string AS named
WHERE named.id IN (SELECT region.name_id FROM host_regions AS region)
ORDER BY named.id
