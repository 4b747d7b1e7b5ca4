-- The recorded host.
--
-- requires: HOST_INFO(hostUid, hostName)
SELECT
    host.hostName AS hostname,  -- name of the host
    CAST(host.hostUid AS TEXT) AS machine_id  -- id of the machine
FROM HOST_INFO AS host
ORDER BY host.hostUid
