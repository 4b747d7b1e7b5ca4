-- Extended payloads of the NVTX ranges in a range of rows, in the order of the export.
--
-- requires: NVTX_EVENTS(start, globalTid, binaryData)
SELECT
    carrying.start AS start_ns,  -- start of the range
    COALESCE(carrying.globalTid, -1) AS thread,  -- thread that opened the range
    CASE LOWER(TYPEOF(carrying.binaryData))
        WHEN 'blob' THEN HEX(carrying.binaryData)
        ELSE CAST(carrying.binaryData AS TEXT)
    END AS payload  -- payload in hexadecimal digits
FROM NVTX_EVENTS AS carrying
WHERE
    carrying._rowid_ BETWEEN $first AND $last
    AND carrying.binaryData IS NOT NULL
ORDER BY carrying._rowid_
