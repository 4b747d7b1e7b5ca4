-- The ranks of the recorded process.
--
-- requires: RANK_DEVICE_MAP(rankId, deviceId)
SELECT
    COALESCE(placement.rankId, -1) AS rank,  -- rank in the run, or -1 if unknown
    COALESCE(placement.deviceId, -1) AS device_id  -- number of its device, or -1 if unknown
FROM RANK_DEVICE_MAP AS placement
ORDER BY placement.rankId
