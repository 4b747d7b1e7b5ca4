-- Messages of nsys which say that the hardware traced CUDA (nsys profile -t cuda-hw).
--
-- If the hardware cannot trace CUDA, nsys says so, and traces CUDA by software.
--
-- requires: DIAGNOSTIC_EVENT(text)
SELECT event.text AS text  -- message
FROM DIAGNOSTIC_EVENT AS event
WHERE LOWER(event.text) LIKE '%hardware trac%' AND NOT LOWER(event.text) LIKE '%not supported%'
ORDER BY event._rowid_ ASC
