-- Kernels in programs, in files that contain only mangled names.
--
-- requires: rocpd_info_kernel_symbol(id, kernel_name)
SELECT
    symbol.id AS id,  -- id
    symbol.kernel_name AS name  -- mangled
FROM rocpd_info_kernel_symbol AS symbol
