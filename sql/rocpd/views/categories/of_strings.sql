-- Event kinds, in files that store their names in the string table.
--
-- requires: rocpd_string(id, string)
SELECT
    kind.id AS id,  -- id
    kind.string AS name  -- for example HIP_RUNTIME_API or MARKER_CORE_RANGE_API
FROM rocpd_string AS kind
