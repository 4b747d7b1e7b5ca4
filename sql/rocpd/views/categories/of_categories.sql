-- Event kinds in schema 4, which has a table for event kinds.
--
-- requires: rocpd_info_category(id, name)
SELECT
    kind.id AS id,  -- id
    kind.name AS name  -- for example HIP_RUNTIME_API or MARKER_CORE_RANGE_API
FROM rocpd_info_category AS kind
