-- Kernels as programs define them, without demangled names.
--
-- requires: rocpd_info_kernel_symbol(id, kernel_name)
SELECT
    symbol.id AS id,  -- id
    symbol.kernel_name AS name  -- as the compiler writes it
FROM rocpd_info_kernel_symbol AS symbol
