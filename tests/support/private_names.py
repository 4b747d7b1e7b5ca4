"""Writes inputs in which every private name contains a token, and finds the token in outputs."""

from __future__ import annotations

import base64
import gzip
import json
import re
import socket
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support import flight_dumps, nccl_runs, xla_files
from tests.support.hostile_profiles import CALLS, KERNELS, NAMES, RANGES
from tests.support.nsys_exports import C, K, R, T, write_profile
from tests.support.operation_tables import Columns, write_columns
from tests.support.processes import read_processes
from tests.support.recorded_runs import record_names
from tests.support.rocm_profiles import write_rocpd
from tests.support.torch_traces import write_traces
from tests.support.xla_profiles import make_gpu

#: A token that is part of every private name: hosts, files, folders, threads and source functions.
TOKEN = "zqprivate"
HOST = f"{TOKEN}-host.example"
#: A name that outputs keep, because only private names inside range and kernel names are replaced.
PUBLIC = "yxpublic"
_FRAME = f"/home/{TOKEN}/{TOKEN}.py(12): {TOKEN}_step"


def write_nsys_export(folder: Path) -> Path:
    """Write a run on one GPU whose range and kernel names contain the host, files and functions."""
    stray = len(NAMES)
    return write_profile(
        folder,
        [
            *(replace(kernel, name=f"{PUBLIC}_{HOST}_{n}") for n, kernel in enumerate(KERNELS)),
            K(600, 700, stray, f"{PUBLIC} of {HOST}"),
            K(800, 900, 99, f"nccl {HOST}"),
        ],
        [*CALLS, C(590, 599, stray, tid=2)],
        [
            *RANGES,
            R(570, 610, _FRAME, tid=2),
            R(580, 605, f"{PUBLIC} of {HOST}", tid=2),
            R(585, 600, f"load /data/{TOKEN}/shards", tid=2),
        ],
        threads=[T(1, f"{TOKEN}-main"), T(2, f"{TOKEN} worker")],
        hostname=HOST,
        name=f"{TOKEN}.sqlite",
    )


def write_kineto_trace(folder: Path) -> Path:
    """Write the same run as a trace of PyTorch."""
    (folder / "export").mkdir()
    export = write_nsys_export(folder / "export")
    traces = folder / f"{TOKEN}-traces"
    traces.mkdir()
    (trace,) = write_traces(export, traces)
    return trace


def write_kineto_trace_without_host(folder: Path) -> Path:
    """Write the same trace without a host name, so that readers fall back to the file name."""
    trace = write_kineto_trace(folder)
    text = gzip.decompress(trace.read_bytes()).decode()
    # Nothing in this file shows that a part of the kernel's name is a host name.
    document = json.loads(text.replace(HOST, ""))
    del document["host_name"]
    file = trace.with_name(f"{TOKEN}.json")
    file.write_text(json.dumps(document))
    trace.unlink()
    return file


def write_rocpd_file(folder: Path) -> Path:
    """Write the same run as a file of rocprofv3."""
    (folder / "export").mkdir()
    export = write_nsys_export(folder / "export")
    return write_rocpd(folder / f"{TOKEN}.db", read_processes(export))


def write_xla_profile(folder: Path) -> Path:
    """Write a JAX run on GPUs that names its threads and its host."""
    *devices, cpu = make_gpu()
    threads = [replace(line, name=f"{TOKEN} {line.name}") for line in cpu.lines]
    planes = [*devices, replace(cpu, lines=threads)]
    file = folder / f"{TOKEN}.xplane.pb"
    file.write_bytes(xla_files.make_space(planes, [HOST]))
    return file


def write_operation_table(folder: Path) -> Path:
    """Write a table of two ranks on two hosts with separate clocks."""
    return _write_table(folder, "csv")


def write_parquet_table(folder: Path) -> Path:
    """Write the same table as Parquet."""
    return _write_table(folder, "parquet")


def _write_table(folder: Path, kind: str) -> Path:
    """Write a table of two ranks in one format only. Each rank has its own host and clock."""
    rows = [
        (rank, f"{HOST}-{rank}", f"{HOST}-clock{rank}", phase, microbatch, rank, start, start + 400)
        for rank in range(2)
        for microbatch in range(2)
        for phase, start in (
            ("F", 1000 + 1000 * microbatch + 500 * rank),
            ("BW", 4000 + 1000 * microbatch + 500 * (1 - rank)),
        )
    ]
    names = ("rank", "host", "clock", "phase", "microbatch", "stage", "start_ns", "end_ns")
    columns: Columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    files = write_columns(folder, columns, TOKEN)
    for other in files.keys() - {kind}:
        files[other].unlink()
    return files[kind]


def write_recording(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Record a run on this host under a different host name."""
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    run = folder / f"{TOKEN}-run"
    record_names(run, ("F mb=0 stage=0", "BW mb=0 stage=0"), 4)
    return run


def write_nccl_events(folder: Path) -> Path:
    """Write NCCL event files that are named after the host."""
    for file in map(Path, nccl_runs.write_ring(folder, count=3)):
        file.rename(file.with_name(f"trace-{HOST}-{file.name}"))
    return folder


def write_flight_recordings(folder: Path) -> Path:
    """Write dumps of flight recorders."""
    dumps = folder / f"{TOKEN}-dumps"
    entries = [
        flight_dumps.make_entry("0", "all_reduce", number, 10 * number, 2) for number in (1, 2)
    ]
    return Path(flight_dumps.write_dumps(dumps, dict.fromkeys(range(4), entries), ".json"))


#: Functions that write an input into a folder and return the path to pass to a command.
INPUTS: tuple[Callable[[Path], Path], ...] = (
    write_nsys_export,
    write_kineto_trace,
    write_kineto_trace_without_host,
    write_rocpd_file,
    write_xla_profile,
    write_operation_table,
    write_parquet_table,
)

_STREAM = re.compile(rb"stream\r?\n(.*?)\r?\nendstream", re.DOTALL)
_PACKED = re.compile(rb"[A-Za-z0-9+/]{40,}={0,2}")


def has_token(content: bytes, token: str) -> bool:
    """Return whether a file contains a token, even inside ZIP, gzip, base64, PDF or Parquet."""
    return any(token.encode() in part.lower() for part in _unpack(content))


def _unpack(content: bytes) -> Iterator[bytes]:
    """Yield the content of a file and of everything packed in it, as detected by magic bytes."""
    yield content
    if content.startswith(b"PK"):
        with zipfile.ZipFile(BytesIO(content)) as archive:
            for name in archive.namelist():
                yield name.encode()
                yield from _unpack(archive.read(name))
    elif content.startswith(b"PAR1"):
        table = pq.read_table(BytesIO(content))
        yield repr((table.schema, table.schema.metadata, table.to_pylist())).encode()
    elif content.startswith((b"%PDF", b"\x89PNG")):
        # Texts in a PNG may be compressed, so try to decompress at every possible stream start.
        starts = (match.start(1) for match in _STREAM.finditer(content))
        zipped = starts if content.startswith(b"%PDF") else range(len(content) - 2)
        for start in zipped:
            if content[start : start + 1] == b"\x78":
                with suppress(zlib.error):
                    yield zlib.decompressobj().decompress(content[start:], 1 << 20)
    else:
        for match in _PACKED.finditer(content):
            with suppress(ValueError):
                packed = base64.b64decode(match[0], validate=True)
                yield packed
                for wbits in (15, 31):
                    with suppress(zlib.error):
                        yield zlib.decompress(packed, wbits)
