-- The names of kinds of events.
--
-- requires: events(category_id)
-- requires: categories(id, name)
SELECT
    kind.id AS category_id,  -- its number
    kind.name AS name  -- for example HIP_RUNTIME_API or MARKER_CORE_RANGE_API
FROM categories AS kind
WHERE kind.id IN (SELECT event.category_id FROM events AS event)
ORDER BY kind.id
