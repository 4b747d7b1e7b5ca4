-- Options of the capture which say that the hardware traced CUDA (nsys profile -t cuda-hw).
--
-- requires: META_DATA_CAPTURE(name, value)
SELECT option.name AS name  -- name of the option
FROM META_DATA_CAPTURE AS option
WHERE
    option.name LIKE 'CAPTURE_EVENT_TYPE%'
    AND REPLACE(REPLACE(LOWER(option.value), '-', ''), '_', '') IN ('cudahw', 'cudahardware')
ORDER BY option._rowid_ ASC
