"""Creates the inputs that both trees read.

Inputs are created once and kept, so that both trees read the same bytes. The tree that contains
this script creates them. Recordings are an exception, because bubbleviz itself defines their
format. Only their operations are created here, and each tree records them with its own recorder
(:mod:`scripts.comparing.recording`).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from bubbleviz.model.texts import format_csv
from tests.planting import Planting, Truth, plant
from tests.support.columnar_exports import FORMS, write_columnar
from tests.support.documented_files import GUIDES
from tests.support.flight_dumps import make_entry, write_dumps
from tests.support.forward_runs import Serving, write_table
from tests.support.idle_runs import plant_idle as write_idle_run
from tests.support.memory_events import Allocations, plant_memory
from tests.support.nccl_runs import write_ring
from tests.support.operation_tables import write_stream, write_tables, write_trace
from tests.support.pipeline_jobs import Job, simulate_job
from tests.support.places import FIXTURES
from tests.support.planted_runs import BASE, FULL, RUNS, ZERO_BUBBLE
from tests.support.processes import read_processes
from tests.support.recorded_runs import get_range_name
from tests.support.rocm_profiles import write_rocpd, write_rpd
from tests.support.torch_traces import set_world_size, write_traces
from tests.support.xla_files import make_space, make_trace_json
from tests.support.xla_profiles import make_gpu, make_tpu
from tests.support.xla_runs import make_steps

_MS = 1_000_000
_LAYERS = (0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0)

#: Synthetic nsys exports, in addition to the exports that tests also use.
_EXPORTS = {
    "full": FULL,
    "clock errors": replace(
        *(BASE,), servers=2, stages=8, clock_error_ns=(0, 3 * _MS), drift_ppb=(0, 900)
    ),
    "clock step": replace(BASE, servers=2, iterations=4, step_ns=(0, 2 * _MS), step_at_ns=40 * _MS),
    "replicas": replace(BASE, replicas=2, servers=2, reduce_ns=500_000, barrier=True),
    "tensor parallel": replace(BASE, stages=2, tensor=2, files="rank", devices="zero"),
    "missing server": replace(BASE, servers=2, stages=8, absent=(1,)),
    "slow rank of replicas": replace(BASE, replicas=2, slow_rank=5, reduce_ns=300_000),
    "slow link": replace(BASE, slow_link=1, transfer_ns=200_000, transfer_jitter=0.1),
    "layers": replace(
        BASE, layers=(40, 20, 25, 25, 25, 25, 30, 60), layer_counts=(2, 2, 2, 2), iterations=3
    ),
}

#: Synthetic jobs with faults, written as tables of operations.
_JOBS = {
    "slow-rank": Job(rank={5: 1.3}),
    "slow-stage": Job(stage={2: 1.25}, schedule="zb-h1"),
    "slow-link": Job(link={(-1, 1): 12.0}),
    "late-rank": Job(late={1: 9.0}, late_every=2),
    "pausing-rank": Job(pause={2: 12.0}, of_host=4),
    "slowing-rank": Job(slows={3: (1.5, 3)}, drift={6: 0.4}),
    "host-bound-rank": Job(gaps={4: 0.4}, schedule="interleaved-1f1b"),
    "uneven-microbatches": Job(lengths=0.4, schedule="gpipe", replicas=1),
    "without-messages": Job(messages=False, between=3.0, microbatch={2: 1.6}),
}


def write_inputs(folder: Path, real: Path | None) -> None:
    """Create all inputs in a new folder, with one subfolder for each kind of input.

    Args:
        folder: Folder to write into.
        real: Folder of real files, some of which are converted to tables, or None to use no real
            files.
    """
    for name in RUNS | _EXPORTS:
        plant((RUNS | _EXPORTS)[name], folder / "nsys" / _file_name(name))
    for write in (_write_columnar, _write_rocm, _write_kineto, _write_xla, _write_tables):
        write(folder)
    _write_communication(folder)
    for fixture in ("1f1b", "zb-h2", "zb-v"):
        target = folder / "fixtures" / fixture
        shutil.copytree(FIXTURES / fixture, target, ignore=shutil.ignore_patterns("*.json"))
    planted = {"interleaved": RUNS["interleaved"], "zb-v": RUNS["zb-v on two servers"]}
    planted["slow-stage"] = replace(BASE, slow_stage=1, iterations=6)
    for name, planting in planted.items():
        write_operations(plant(planting, folder / "unused"), folder / "operations" / f"{name}.json")
    if real:
        _write_published(folder / "published", real)
    shutil.rmtree(folder / "unused")


def _file_name(text: str) -> str:
    return re.sub(r"\W+", "-", text).lower()


def _export(folder: Path, planting: Planting) -> Path:
    """Simulate a run on one server, and return its export."""
    plant(planting, folder)
    return folder / "node0.sqlite"


def _write_columnar(folder: Path) -> None:
    export = _export(folder / "unused", replace(FULL, stages=4))
    for name, form in FORMS.items():
        target = folder / "columnar" / _file_name(name)
        target.mkdir(parents=True)
        write_columnar(export, target, form)


def _write_rocm(folder: Path) -> None:
    """Write rocprofv3 databases in two schema versions, and an rpd trace."""
    processes = read_processes(_export(folder / "unused", ZERO_BUBBLE))
    rocm = folder / "rocm"
    write_rocpd(rocm / "release-7" / "merged.db", processes)
    write_rocpd(rocm / "release-6-4" / "merged.db", processes, release="6.4", link="correlation_id")
    for process in processes:
        write_rocpd(rocm / "one-file-per-process" / f"{process.pid}_results.db", [process])
    (rocm / "rpd").mkdir()
    write_rpd(rocm / "rpd" / "trace.rpd", processes)


def _write_kineto(folder: Path) -> None:
    """Write PyTorch profiler traces, including traces with allocations and traces with modules."""
    kineto = folder / "kineto"
    runs: dict[str, Planting] = {
        "plain": replace(BASE, devices="zero"),
        "world": replace(ZERO_BUBBLE, devices="zero"),
        "memory": Planting(stages=2, microbatches=4, devices="zero"),
        "modules": replace(_EXPORTS["layers"], devices="zero", layer_names="nn.Module: Layer_{}"),
    }
    for name, planting in runs.items():
        export = _export(folder / "unused", planting)
        (kineto / name).mkdir(parents=True)
        traces = write_traces(export, kineto / name, modules=name == "modules")
        if name == "world":
            set_world_size(traces, len(traces))
        if name == "memory":
            allocations = Allocations(50 * _MS, 20 * _MS, 3 * _MS, 8 * _MS, 400 * _MS)
            for trace in traces:
                plant_memory(trace, allocations)


def _write_xla(folder: Path) -> None:
    """Write profiles of TPUs and GPUs from XLA, as protobuf and as JSON."""
    xla = folder / "xla"
    writers: dict[str, Callable[[], bytes]] = {
        "tpu.xplane.pb": lambda: make_space(make_tpu(), ["host0"]),
        "gpu.xplane.pb": lambda: make_space(make_gpu(), ["host0"], refs=False),
        "tpu.trace.json": lambda: make_trace_json(make_tpu()),
        "gpu.trace.json": lambda: make_trace_json(make_gpu()),
    }
    xla.mkdir()
    for name, write in writers.items():
        (xla / name).write_bytes(write())
    make_steps(12).written(xla)


def _write_tables(folder: Path) -> None:
    """Write tables of operations, traces of MegaScan, and a table of layers."""
    tables = folder / "tables"
    tables.mkdir()
    for name, job in _JOBS.items():
        simulate_job(job).written(tables / f"{name}.csv")
    (tables / "serving").mkdir()
    lengths = (1, 2, 1, 3, 1, 1)
    tokens = [128 * length for length in lengths]
    serving = Serving(lengths, (1.0, 1.5, 1.0), transfer_ns=50_000, depth=3, tokens=tokens)
    write_table(tables / "serving", serving)
    rows = [
        (rank, phase, 1_000 * (10 * number + rank), 1_000 * (10 * number + rank + 4))
        for number, phase in enumerate(("F", "F", "BW", "BW", "Optimizer"))
        for rank in range(3)
    ]
    write_tables(tables, rows)
    columns = zip(*rows, strict=True)
    names = ("rank", "phase", "start_ns", "end_ns")
    write_stream(tables / "stream.arrow", dict(zip(names, map(list, columns), strict=True)))
    events = [(rank, number // 3, phase, a, b) for number, (rank, phase, a, b) in enumerate(rows)]
    write_trace(tables / "megascan.json", events)
    write_trace(tables / "megascan-whole.json", events, as_one_event=True)
    layers = [(f"layers.{n}", t, 2 * t, t, 1) for n, t in enumerate(_LAYERS)]
    header = ("name", "forward_ms", "backward_ms", "weight_ms", "memory")
    (folder / "layers.csv").write_text(format_csv(header, layers), encoding="utf-8")


def _write_communication(folder: Path) -> None:
    """Write the NCCL events of two runs, and the flight recorder dumps of a hang in two formats."""
    nccl = folder / "nccl"
    for name in ("ring", "idle"):
        (nccl / name).mkdir(parents=True)
    write_ring(nccl / "ring")
    write_idle_run(nccl / "idle")
    everyone = [make_entry("0", "all_reduce", 1)]
    ranks = {0: everyone, 1: everyone, 2: [make_entry("4", "all_reduce", 1)], 3: []}
    write_dumps(nccl / "hang", ranks)
    write_dumps(nccl / "hang-json", ranks, ".json")


def _write_published(folder: Path, real: Path) -> None:
    """Convert published runs to tables of operations, because bubbleviz cannot read their files."""
    folder.mkdir()
    guide = (GUIDES / "tables.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (example,) = (text for text in examples if "trace.parquet" in text)
    for name in ("AR", "ST"):
        with TemporaryDirectory() as working, chdir(working):
            shutil.copy(real / "straggler" / f"trace-{name}.parquet", "trace.parquet")
            exec(compile(example, "tables.md", "exec"), {})
            shutil.copy("operations.parquet", folder / f"straggler-{name}.parquet")
    rows = []
    for rank in range(8):
        text = (real / "primus" / "pp8" / f"pp_rank_{rank}.json").read_text(encoding="utf-8")
        base_ns = 0
        for iteration in json.loads(text).values():
            for phase, word in (("F", "fwd"), ("BW", "bwd")):
                times = zip(iteration[f"{word}_start"], iteration[f"{word}_end"], strict=True)
                for microbatch, (start, end) in enumerate(times):
                    start_ns, end_ns = (base_ns + round(time * _MS) for time in (start, end))
                    rows.append((rank, phase, microbatch, start_ns, end_ns))
            base_ns += round(iteration["total"] * _MS)
    header = ("rank", "phase", "microbatch", "start_ns", "end_ns")
    (folder / "primus.csv").write_text(format_csv(header, rows), encoding="utf-8")


def write_operations(truth: Truth, path: Path) -> None:
    """Write the operations of a synthetic run as JSON, for :mod:`scripts.comparing.recording`.

    The JSON is a list of ranks. A rank's entry contains its number, the number of ranks, and its
    host. The error of the host's UTC clock, the offset of its monotonic clock, and the rank's
    iterations follow. Each iteration has a number and a list of operations (start, end, range
    name), sorted by time.
    """
    hosts = list(dict.fromkeys(rank.host for rank in truth.ranks))
    ranks = []
    for rank in truth.ranks:
        host_index = hosts.index(rank.host)
        ran = [o for o in truth.operations if o.rank == rank.rank and o.span is not None]
        ran.sort(key=lambda operation: operation.start_ns or 0)
        iterations = [
            {
                "number": number,
                "operations": [(o.start_ns, o.end_ns, get_range_name(o)) for o in operations],
            }
            for number, operations in groupby(ran, key=lambda operation: operation.iteration)
        ]
        ranks.append(
            {
                "rank": rank.rank,
                "world_size": len(truth.ranks),
                "host": rank.host,
                "clock_error_ns": 2 * _MS * host_index,
                "uptime_ns": 777_000_000_000 * host_index,
                "iterations": iterations,
            }
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(ranks), encoding="utf-8")
