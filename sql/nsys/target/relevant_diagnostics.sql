-- Warnings and errors from nsys, without those about helper processes, most severe first.
--
-- nsys warns about every process that it follows, such as data loaders and compilers. Helper
-- processes are those from which nsys collected neither CUDA events nor ranges.
--
-- requires: DIAGNOSTIC_EVENT(severity, text, globalPid)
WITH
processes_without_cuda AS (
    SELECT event.globalPid AS process  -- process id
    FROM DIAGNOSTIC_EVENT AS event
    WHERE event.globalPid IS NOT NULL AND event.text LIKE 'No CUDA events collected%'
),

processes_with_ranges AS (
    SELECT event.globalPid AS process  -- process id
    FROM DIAGNOSTIC_EVENT AS event
    WHERE event.globalPid IS NOT NULL AND event.text LIKE 'Number of NVTX events collected%'
)

SELECT event.text AS text  -- message
FROM DIAGNOSTIC_EVENT AS event
WHERE
    (event.severity >= 2 OR event.text LIKE '%events dropped%')
    AND event.text IS NOT NULL
    AND (
        event.globalPid IS NULL
        OR event.globalPid NOT IN (SELECT other.process FROM processes_without_cuda AS other)
        OR event.globalPid IN (SELECT other.process FROM processes_with_ranges AS other)
    )
ORDER BY event.severity DESC, event.text ASC
