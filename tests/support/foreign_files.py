"""Small files in formats of other profilers, which are recognized but not read.

The layouts were read in the sources of the tools that write them:

- rocprofv3: ROCm/rocprofiler-sdk, ``source/docs/how-to/using-rocprofv3.rst``
- rocprof: ROCm/rocprofiler, ``bin/tblextr.py`` and ``bin/sqlitedb.py``
- rpd2tracing: ROCm/rocmProfileData, ``tools/rpd2tracing.py``
- nvprof: ROCm/rocmProfileData, ``tools/nvvp2rpd.py``
- OTF2: score-p/otf2, ``src/OTF2_AnchorFile.c``
- unitrace: intel/pti-gpu, ``tools/unitrace/src/chromelogger.h``
- Perfetto: google/perfetto, ``protos/perfetto/trace/trace_packet.proto``
- PyTorch: pytorch/pytorch, ``torch/csrc/profiler/standalone/execution_trace_observer.cpp`` and
  ``torch/cuda/memory.py``
- nsys: the user guide of Nsight Systems, "JSON and TEXT Format Description"
"""

from __future__ import annotations

import json
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path

_UNITRACE = (
    '{ "traceEvents":[\n'
    '{"ph": "X", "tid": 4294967295, "pid": 4294967294, "name": "gemm", "cat": "gpu_op", '
    '"ts": 1, "dur": 2, "args": {"id": "7"}},\n'
    '{"ph": "X", "tid": 3, "pid": 2, "name": "zeCommandListAppendLaunchKernel", '
    '"cat": "cpu_op", "ts": 0, "dur": 1, "id": 0},\n'
)
_RPD_EVENTS = (
    '[ {}\n,{"name": "process_name", "ph": "M", "pid":"0","args":{"name":"GPU0"}}\n'
    ',{"pid":"0","tid":"1","name":"gemm","ts":"1.5","dur":"2.5","ph":"X",'
    '"args":{"desc":"KernelExecution"}}\n]'
)
_NSYS_STATS = (
    "Processing [run.sqlite] with [cuda_gpu_kern_sum.py]... \n\n"
    " ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n\n"
    " Time (%)  Total Time (ns)  Instances  Name\n --------  ---------------  ---------  ----\n"
)
_NSYS_PROFILE_STATS = (
    "[3/8] Executing 'nvtx_sum' stats report\n\n"
    " Time (%)  Total Time (ns)  Instances  Avg (ns)   Style   Range\n"
)
#: Text of each file, keyed by file name.
_TEXTS = {
    "config.json": '{"world_size": 8, "pp_size": 8, "vp_size": 1, "num_mbs": 16}',
    "1_results.json": '{\n    "rocprofiler-sdk-tool": [\n        {"metadata": {"pid": 1}}]}',
    "1_kernel_trace.csv": '"Kind","Agent_Id","Queue_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp"\n"KERNEL_DISPATCH","Agent 1",1,"gemm",1,10,20\n',
    "1_marker_api_trace.csv": '"Domain","Function","Process_Id","Thread_Id","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp"\n"MARKER_CORE_API","F0",1,1,1,10,20\n',
    "1_kernel_stats.csv": '"Name","Calls","TotalDurationNs","AverageNs"\n"gemm",1,2,2\n',
    "1_agent_info.csv": '"Node_Id","Logical_Node_Id","Agent_Type"\n0,0,"CPU"\n',
    "1_pc_sampling_host_trap.csv": '"Sample_Timestamp","Exec_Mask","Dispatch_Id"\n1,2,3\n',
    "results.csv": 'Index,KernelName,gpu-id,queue-id,DispatchNs,BeginNs,EndNs\n0,"a",0,0,1,2,3\n',
    "rocprof.json": '{ "traceEvents":[{}\n,{"args":{"name":"CPU HIP API"},"ph":"M","pid":2}\n]}',
    "rpd.json": _RPD_EVENTS,
    "rpd_object.json": f'{{"traceEvents": {_RPD_EVENTS}}}',
    "wall_clock.json": '{\n    "timemory": {\n        "wall_clock": {"properties": {}}}}',
    "nsys_lines.json": '{"table":"META_DATA_CAPTURE","name":"DEVICE_ID"}\n',
    "unitrace.json": _UNITRACE + "]}",
    "unitrace_cut.json": _UNITRACE,
    "unitrace.csv": "Kernel, Calls, Time (ns), Time (%), Average (ns), Min (ns), Max (ns)\n",
    "unitrace.txt": "=== Device Timing Summary ===\n\n",
    "kern_sum.csv": "Processing [run.sqlite] with [cuda_gpu_kern_sum.py]...\n"
    'Time (%),Total Time (ns),Instances,Avg (ns),Name\n100.0,75200,1,75200.0,"gemm"\n',
    "old_kern_sum.csv": '"Time(%)","Total Time (ns)","Instances","Avg (ns)","Name"\n9,7,1,2,"a"\n',
    "mem_size.csv": "Total (MB),Count,Avg (MB),Med (MB),Operation\n1.0,2,0.5,0.5,[CUDA memset]\n",
    "gpu_trace.csv": "Start (ns),Duration (ns),CorrId,Device,Strm,Name\n1,2,3,GPU,7,gemm\n",
    "nsys_stats.txt": _NSYS_STATS,
    "nsys_profile.log": _NSYS_PROFILE_STATS,
    "nsys.json": '{"Type":48,"TraceProcessEvent":{"startNs":"1","endNs":"2","name":"3"}}\n'
    '{"Type":79,"CudaEvent":{"startNs":"1","endNs":"2"}}\n{"data":["[Unknown]"]}\n',
    "nsys_separate.jsonl": '{"type":"String","id":"3720","value":"Profiling has started."}\n',
    "nsys_tables.json": '{"StringIds": [], "CUPTI_ACTIVITY_KIND_KERNEL": [{"start": 1}]}',
    "nsys_stats.json": '[\n  {"Time (%)":60.0,"Total Time (ns)":6,"Num Calls":1,"Avg (ns)":6.0}]',
    "nsys_2020.csv": "Time(%),Total Time (ns),Calls,Average,Minimum,Maximum,Name\n",
    "nvprof_trace.csv": '"Start","Duration","Grid X","Grid Y","Device","Stream","Name"\ns,us\n',
    "nvprof_old.csv": '"Time(%)","Time","Calls","Avg","Min","Max","Name"\n%,ms,,us,us,us,\n',
    "nvprof.csv": '==6531== Profiling result:\n"Type","Time(%)","Time","Calls","Avg","Name"\n',
    "nvprof.log": "==6531== NVPROF is profiling process 6531, command: ./a.out\n",
    "ncu.csv": '==PROF== Connected to process 1\n"ID","Process ID","Process Name","Host Name",'
    '"Kernel Name","Metric Name","Metric Value"\n',
    "ncu.txt": "[5] a.out@127.0.0.1\n  gemm(float *) (1, 1, 1)x(256, 1, 1), Context 1, Stream 7\n",
    "execution_trace.json": '{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "now", '
    '"start_ts": 5,\n  "nodes": [\n    {"id": 2, "name": "[pytorch|profiler|process]"}]}',
    "speedscope.json": json.dumps(
        {"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}
    ),
}
_BYTES = {
    # Two packets: a clock snapshot, and an event, each with a trusted user id and a sequence id.
    "1_results.pftrace": b"\n\x08\x32\x02\x08\x06\x18\0\x50\x01\n\x06\x40\x05\x18\0\x50\x02",
    # The header of a chunk contains an endianness byte and the numbers of two events.
    "1_results.otf2": b"\x03#" + bytes(16) + b"OTF2\x03\x00",
    "report.ncu-rep": b"NVR\0\x10\x00\x00\x00",
    "perf.data": b"PERFILE2\x68\x00\x00\x00\x00\x00\x00\x00",
    "events.out.tfevents.1.host": b"\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\x09\0\0\xc0\x5a\x3c\x5b\xd9"
    b"\x41\x1a\x0dbrain.Event:2\xec\x8d\x1d\x6e",
    "report.h5": b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0",
    "snapshot.pickle": pickle.dumps({"segments": [{"device": 0}], "device_traces": [[]]}),
}
_TABLES = {
    "nvprof.nvvp": (
        "CUPTI_ACTIVITY_KIND_RUNTIME (_id_, cbid, start, end, processId, threadId, correlationId)",
        "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL (_id_, start, end, deviceId, correlationId, name)",
        "CUPTI_ACTIVITY_KIND_KERNEL (_id_, start, end, deviceId, correlationId, name)",
        "StringTable (_id_, value)",
    ),
    "nvprof.sqlite": (
        "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL (_id_, start, end, deviceId, correlationId, name)",
        "StringTable (_id_, value)",
    ),
    "results.db": ('HIP ("BeginNs", "EndNs", "Name")', 'OPS ("BeginNs", "EndNs", "Name")'),
}


def write_foreign_files(folder: Path) -> list[Path]:
    """Write one file of each kind, and return the files."""
    for name, text in _TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, content in _BYTES.items():
        (folder / name).write_bytes(content)
    for name, tables in _TABLES.items():
        with closing(sqlite3.connect(folder / name)) as database, database:
            for table in tables:
                database.execute(f"CREATE TABLE {table}")
    return [folder / name for name in (*_TEXTS, *_BYTES, *_TABLES)]
