-- Kernels as programs define them, with demangled names alone.
--
-- requires: rocpd_info_kernel_symbol(id, display_name)
SELECT
    symbol.id AS id,  -- its number
    symbol.display_name AS name  -- demangled
FROM rocpd_info_kernel_symbol AS symbol
