"""Columns of constants, and export tables that describe the host, its processes and its GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from tests.planting.layout import Columns
from tests.planting.places import HOST_ID, make_gpu_uuid

#: Columns that have the same value for every kernel.
KERNEL_CONSTANTS: Columns = {
    "contextId": 1,
    "greenContextId": 0,
    "launchType": 1,
    "cacheConfig": 0,
    "registersPerThread": 32,
    "gridX": 1056,
    "gridY": 1,
    "gridZ": 1,
    "blockX": 128,
    "blockY": 1,
    "blockZ": 1,
    "staticSharedMemory": 0,
    "dynamicSharedMemory": 0,
    "localMemoryPerThread": 0,
    "localMemoryTotal": 250_871_808,
    "sharedMemoryExecuted": 32_768,
    "sharedMemoryLimitConfig": 0,
    "clusterX": 0,
    "clusterY": 0,
    "clusterZ": 0,
    "clusterSchedulingPolicy": 0,
    "tensorSizeMinusOneElements": "[]",
}


def make_process_tables(
    hostname: str, pids: Sequence[int], gpus: Sequence[int], devices: Sequence[int]
) -> dict[str, Columns]:
    """Return the tables of processes and of the GPUs that they use.

    Args:
        hostname: Name of the host.
        pids: Process ids, one per GPU.
        gpus: Index of each process's GPU in the host.
        devices: Device id of each GPU as seen by its process.
    """
    return {
        "PROCESSES": {
            "globalPid": [HOST_ID + (pid << 24) for pid in pids],
            "pid": pids,
            "name": "python3",
        },
        "TARGET_INFO_GPU": {
            "vmId": HOST_ID,
            "id": gpus,
            "name": "NVIDIA H100 80GB HBM3",
            "busLocation": [f"0000:{27 + 8 * gpu:02x}:00.0" for gpu in gpus],
            "isDiscrete": 1,
            "totalMemory": 85_045_870_592,
            "smCount": 132,
            "uuid": [make_gpu_uuid(hostname, gpu) for gpu in gpus],
            "cuDevice": gpus,
            "computeMajor": 9,
            "computeMinor": 0,
        },
        "TARGET_INFO_CUDA_DEVICE": {"gpuId": gpus, "cudaId": devices, "pid": pids},
    }


def make_session_tables(hostname: str, utc_epoch_ns: int, monotonic_ns: int) -> dict[str, Columns]:
    """Return the tables of the host and the start of the session.

    Args:
        hostname: Name of the host.
        utc_epoch_ns: Start of the session in UTC, as ns since 1970.
        monotonic_ns: Start of the session on the host's monotonic clock.
    """
    utc = datetime.fromtimestamp(utc_epoch_ns // 10**9, tz=timezone.utc)
    start_time = utc.strftime("%Y-%m-%dT%H:%M:%S")
    return {
        "TARGET_INFO_SESSION_START_TIME": {
            "utcEpochNs": [utc_epoch_ns],
            "utcTime": start_time,
            "localTime": start_time,
            "systemClockNs": monotonic_ns,
        },
        "TARGET_INFO_SYSTEM_ENV": {
            "globalVid": HOST_ID,
            "devStateName": "Local (CLI)",
            "name": ["CpuArchitecture", "Hostname"],
            "nameEnum": [3, 619],
            "value": ["x86_64", hostname],
        },
    }
