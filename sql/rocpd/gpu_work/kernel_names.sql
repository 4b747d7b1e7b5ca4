-- The name of every kernel that programs define.
--
-- requires: symbols(id, name)
SELECT
    symbol.id AS kernel_id,  -- its number
    symbol.name AS name  -- demangled where it can be
FROM symbols AS symbol
WHERE symbol.name IS NOT NULL
ORDER BY symbol.id
