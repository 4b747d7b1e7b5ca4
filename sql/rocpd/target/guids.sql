-- The GUIDs of the processes in one set of tables.
--
-- requires: rocpd_info_process(guid)
SELECT DISTINCT process.guid AS guid  -- GUID of a process
FROM rocpd_info_process AS process
WHERE process.guid IS NOT NULL
ORDER BY process.guid
