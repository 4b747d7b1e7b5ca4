-- Warnings and errors from nsys and its injected libraries, most severe first.
--
-- A message that counts dropped events is included, whatever its severity.
--
-- requires: DIAGNOSTIC_EVENT(severity, text)
SELECT event.text AS text  -- message
FROM DIAGNOSTIC_EVENT AS event
WHERE
    (event.severity >= 2 OR event.text LIKE '%events dropped%')
    AND event.text IS NOT NULL
ORDER BY event.severity DESC, event.text ASC
