"""Writes small versions of all files read by the commands in the README and the guides."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from bubbleviz.cli.app import main
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.ascend_profiles import AscendWriter
from tests.support.columnar_exports import write_columnar
from tests.support.flight_dumps import make_entry, write_dumps
from tests.support.forward_runs import Serving, write_table
from tests.support.inspector_files import Call, Inspector
from tests.support.memory_events import Allocations, plant_memory
from tests.support.nccl_event_files import Op, Plugin
from tests.support.places import CHECKOUT, FIXTURES
from tests.support.primus_dumps import write_dumped_run
from tests.support.processes import read_processes
from tests.support.rocm_profiles import write_rocpd
from tests.support.torch_traces import write_traces
from tests.support.xla_profiles import make_gpu, make_tpu, write_planes
from tests.support.xla_runs import Run

GUIDES = CHECKOUT / "bubbleviz" / "guides"

#: 1F1B on two ranks with two microbatches, lowered as PyTorch does.
LOWERED_1F1B = (
    "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD",
    "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD",
)


def write_documented_files(folder: Path) -> None:
    """Write every file that a documented command reads into a folder."""
    for name in ("1f1b", "zb-h2", "zb-v"):
        shutil.copytree(FIXTURES / name, folder / "fixtures" / name)
    for name in ("run", "before", "after"):
        shutil.copytree(FIXTURES / "1f1b", folder / name)
    for name in ("node0.sqlite", "node1.sqlite"):
        shutil.copy(FIXTURES / "zb-h2" / name, folder / name)
        write_columnar(folder / name, folder)
    assert main(["analyze", str(folder / "run"), "--csv", str(folder / "operations.csv")]) == 0
    for name in ("report.json", "before.json", "after.json"):
        assert main(["analyze", str(folder / "run"), "--json", str(folder / name)]) == 0
    # Write one plan for run/ and one for traces/.
    for name, stages, microbatches in (("order.csv", "4", "8"), ("schedule.csv", "2", "4")):
        sizes = ["--schedule", "1f1b", "-p", stages, "-m", microbatches]
        times = ["--tf", "1", "--tb", "1", "--tw", "1"]
        assert main(["simulate", *sizes, *times, "--csv", str(folder / name)]) == 0
    (folder / "1f1b.comms.csv").write_text("\n".join(LOWERED_1F1B), encoding="utf-8")
    layers = (30, *[100] * 6, 160)
    plant(Planting(stages=2, layers=layers, layer_counts=(4, 4)), folder / "layered")
    rows = [f"layers.{number},1,1,1,1.1GB,2GB" for number in range(12)]
    header = "name,forward_ms,backward_ms,weight_ms,memory,resident"
    (folder / "layers.csv").write_text("\n".join((header, *rows, "")), encoding="utf-8")
    _write_convention(folder)
    _write_traces(folder)
    _write_xla(folder)
    _write_nccl(folder)
    (folder / "served").mkdir()
    write_table(folder / "served", Serving([0.1, 0.2, 0.5], tokens=[64, 128, 512]))
    write_dumped_run(folder / "pp_data", "1f1b", 2, 4)
    for rank, process in enumerate(read_processes(folder / "node0.sqlite")[:2]):
        writer = AscendWriter(
            folder / f"run_ascend/{rank}_ascend_pt/ASCEND_PROFILER_OUTPUT"
            f"/ascend_pytorch_profiler_{rank}.db",
            rank,
        )
        writer.write(process)
    for rank in (0, 1):
        inspector = Inspector(pid=100 + rank, rank=rank)
        inspector.add_dump([Call("AllReduce", 0, rank, 5_000_000)]).write(folder / "inspector")
    write_dumps(folder / "dumps", {rank: [make_entry("0", "barrier", 1)] for rank in (0, 1, 2)})


def _write_convention(folder: Path) -> None:
    """Write the naming convention from the guide, adapted to the ranges of ``run/``."""
    example = re.search(r"```toml\n(.*?)```", (GUIDES / "conventions.md").read_text(), re.DOTALL)
    assert example is not None
    (folder / "guide.toml").write_text(example[1], encoding="utf-8")
    built_in = CHECKOUT / "bubbleviz" / "conventions" / "frameworks" / "zero_bubble.toml"
    shutil.copy(built_in, folder / "mine.toml")


def _write_traces(folder: Path) -> None:
    """Write a synthetic run as PyTorch traces with memory events, and as rocprofv3 files."""
    planted = folder / "planted"
    planted.mkdir()
    plant(Planting(stages=2, microbatches=4, iterations=2), planted)
    export = next(planted.glob("*.sqlite"))
    for name in ("traces", "tensorboard"):
        (folder / name).mkdir()
        traces = write_traces(export, folder / name)
        for trace in traces:
            plant_memory(trace, Allocations(held=10**9, temporary=10**8, resident=10**10))
    pids = (4711, 4712)
    for process, pid in zip(read_processes(export), pids, strict=True):
        write_rocpd(folder / "profiles" / "node0" / f"{pid}_results.db", [process])
    shutil.copy(traces[0], folder / "rank0.json.gz")
    shutil.copy(traces[0], folder / "rank0.pt.trace.json.gz")
    shutil.copy(traces[0], folder / "trace.json.gz")


def _write_xla(folder: Path) -> None:
    for folder_ in ("DIR/plugins/profile/2025_01_31_12_00_00", "profile/plugins/profile/DATE"):
        (folder / folder_).mkdir(parents=True)
        write_planes(folder / folder_, make_gpu())
    write_planes(folder, make_gpu())
    write_planes(folder, make_tpu(), "host1.xplane.pb")


def write_documented_jax_files(folder: Path) -> None:
    """Write an export of a JAX run, and its costs, under the names used in the PGLE guide."""
    run = Run()
    for _ in range(4):
        with run.module():
            run.thunk("fusion.1", 40, 20)
            run.thunk("fusion.2", 50)
    run.written(folder, "node0.sqlite")
    shutil.copy(folder / "node0.sqlite", folder / "second.sqlite")
    assert main(["pgle", str(folder / "node0.sqlite"), "-o", str(folder / "costs.pbtxt")]) == 0


def _write_nccl(folder: Path) -> None:
    """Write the event files of NCCL's profiler plugin for two ranks."""
    for rank in range(2):
        plugin = Plugin(pid=100 + rank)
        plugin.add(Op("AllReduce", 1_000_000, 2_000_000, rank))
        (folder / f"trace-host-{rank}.txt").write_text(plugin.text(), encoding="utf-8")
