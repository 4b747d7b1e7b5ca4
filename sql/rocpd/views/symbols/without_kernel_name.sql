-- Kernels in programs, in files that contain only demangled names.
--
-- requires: rocpd_info_kernel_symbol(id, display_name)
SELECT
    symbol.id AS id,  -- id
    symbol.display_name AS name  -- demangled
FROM rocpd_info_kernel_symbol AS symbol
