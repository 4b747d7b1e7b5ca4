-- Names of all kernels in the programs.
--
-- requires: symbols(id, name)
SELECT
    symbol.id AS kernel_id,  -- id
    symbol.name AS name  -- demangled if possible
FROM symbols AS symbol
WHERE symbol.name IS NOT NULL
ORDER BY symbol.id
