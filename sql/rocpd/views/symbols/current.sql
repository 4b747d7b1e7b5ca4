-- Kernels as programs define them.
--
-- requires: rocpd_info_kernel_symbol(id, kernel_name, display_name)
SELECT
    symbol.id AS id,  -- its number
    COALESCE(NULLIF(symbol.display_name, ''), symbol.kernel_name) AS name  -- demangled where it can be
FROM rocpd_info_kernel_symbol AS symbol
