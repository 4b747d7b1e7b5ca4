-- Event kind names for the given ids (a JSON array).
--
-- requires: categories(id, name)
SELECT
    kind.id AS category_id,  -- id
    kind.name AS name  -- for example HIP_RUNTIME_API or MARKER_CORE_RANGE_API
FROM JSON_EACH($ids) AS wanted
INNER JOIN categories AS kind ON wanted.value = kind.id
ORDER BY kind.id
