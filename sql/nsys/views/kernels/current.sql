-- Kernels.
--
-- requires: CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, correlationId, globalPid, demangledName, streamId)
SELECT
    kernel._rowid_ AS row_number,  -- row number
    kernel.start AS start_ns,  -- start time on the device, in ns since the session start
    kernel."end" AS end_ns,  -- end time, on the same clock
    kernel.deviceId AS device_id,  -- device number, as numbered in the process
    kernel.globalPid AS process,  -- host id and process id, shifted left by 24 bits
    kernel.correlationId AS correlation_id,  -- CUPTI's correlation id of the launching call
    kernel.demangledName AS name_id,  -- StringIds.id of the full name
    kernel.streamId AS stream_id  -- stream number, as numbered in the process
FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel
