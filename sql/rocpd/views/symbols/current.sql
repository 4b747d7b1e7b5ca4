-- Kernels in programs, with their names.
--
-- requires: rocpd_info_kernel_symbol(id, kernel_name, display_name)
SELECT
    symbol.id AS id,  -- id
    COALESCE(NULLIF(symbol.display_name, ''), symbol.kernel_name) AS name  -- demangled if possible
FROM rocpd_info_kernel_symbol AS symbol
