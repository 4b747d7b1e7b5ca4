-- All memory allocations and frees, in the order of the export.
--
-- nsys records these events with --cuda-memory-usage=true.
--
-- requires: CUDA_GPU_MEMORY_USAGE_EVENTS(start, globalPid, deviceId, address, bytes, memKind, memoryOperationType)
SELECT
    event.start AS start_ns,  -- time at which the host requested the operation
    event.globalPid AS process,  -- host id and process id, shifted left by 24 bits
    event.deviceId AS device_id,  -- device number, as numbered in the process
    event.address AS address,  -- address of the memory
    event.bytes AS bytes,  -- number of bytes
    event.memKind AS kind,  -- ENUM_CUDA_MEM_KIND: 0 and 1 are host memory
    event.memoryOperationType AS operation  -- ENUM_CUDA_DEV_MEM_EVENT_OPER: 0 allocated, 1 freed
FROM CUDA_GPU_MEMORY_USAGE_EVENTS AS event
ORDER BY event._rowid_
