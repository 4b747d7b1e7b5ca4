"""Kinds of input: how to write and damage small valid inputs, and which commands to run."""

from __future__ import annotations

import gzip
import random
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TypeAlias
from unittest import mock

from bubbleviz.cli.app import main
from bubbleviz.model.texts import format_csv
from scripts.fuzzing.formats import (
    damage_arrow,
    damage_csv,
    damage_json,
    damage_json_lines,
    damage_lines,
    damage_pickle,
    damage_toml,
)
from scripts.fuzzing.protobuf_damage import damage_space
from scripts.fuzzing.sqlite_damage import damage_database
from tests.planting import Planting, plant
from tests.support.ascend_profiles import write_ascend
from tests.support.columnar_exports import FORMS, write_columnar
from tests.support.flight_dumps import make_entry, write_dumps
from tests.support.inspector_files import Call, Inspector
from tests.support.memory_events import Allocations, plant_memory
from tests.support.nccl_event_files import make_proxy_file
from tests.support.nccl_runs import write_ring
from tests.support.operation_tables import write_columns as write_tables
from tests.support.operation_tables import write_stream, write_trace
from tests.support.places import CHECKOUT
from tests.support.processes import read_processes
from tests.support.recorded_runs import record_names
from tests.support.rocm_profiles import write_rocpd, write_rpd
from tests.support.torch_traces import set_world_size, write_traces
from tests.support.xla_files import make_space, make_trace_json
from tests.support.xla_profiles import make_gpu, make_tpu
from tests.support.xla_runs import make_steps

#: A function that damages one file in place.
Damage: TypeAlias = Callable[[Path, random.Random], None]

#: The smallest runs that produce all results. One run is plain, and the other contains everything
#: that an export may contain.
_SMALL = Planting(stages=2, microbatches=2, iterations=2)
_FULL = replace(
    _SMALL,
    schedule="zb-h1",
    autograd="named",
    library_depth=1,
    text="mixed",
    ranges="mixed",
    watchdog=True,
    copies=True,
    double_calls=True,
    iteration_ranges=True,
    overhead=True,
)

#: Commands that read a profile.
#: ``{in}`` is the damaged input, and ``{out}`` is a folder for outputs.
_PROFILE_COMMANDS = (
    "analyze {in} -j 1",
    "analyze {in} -j 1 -v",
    "analyze {in} -j 1 -q -o {out}/r.json",
    "analyze {in} -j 1 -v -o {out}/r.json -o {out}/r.csv -o {out}/r.svg",
    "analyze {in} -j 1 -q -o {out}/r.html",
    "analyze {in} -j 1 -q -o {out}/r.trace.json -o {out}/r.bubbles.csv -o {out}/r.md",
    "analyze {in} -j 1 -q -o {out}/r.tex -o {out}/r.txt -o {out}/r.panels.svg",
    "analyze {in} -j 1 --memory --anonymous -o {out}/r.json",
    "analyze {in} -j 1 --skip 1 --causes --critical-path -o {out}/r.svg",
    "analyze {in} -j 1 --window iteration:0-0 --align utc",
    "analyze {in} -j 1 --json -",
    "inspect {in}",
    "inspect {in} -v",
    "inspect {in} -o {out}/bundle.zip",
    "idle {in} -j 1",
    "idle {in} -j 1 -v -o {out}/i.json -o {out}/i.csv -o {out}/i.svg",
    "idle {in} -j 1 -q -o {out}/i.html",
    "nccl {in} -j 1 -v -o {out}/n.json",
    "pgle {in} -j 1 -o {out}/c.pbtxt",
    "gate {in} -j 1 --max-bubble 90%",
    "compare {in} {in} -j 1 -o {out}/c.json",
    "layout {in} -j 1 --layers-per-stage 2",
    "plan {in} -j 1",
    "{in}",
)
#: Commands that read a table of operations, which has no kernels.
_TABLE_COMMANDS = tuple(
    command
    for command in _PROFILE_COMMANDS
    if command.split()[0] in {"analyze", "inspect", "gate", "compare", "layout", "plan", "{in}"}
)
_REPORT_COMMANDS = (
    "compare {good} {in} -o {out}/c.json -o {out}/c.md",
    "compare {in} {good} -v -o {out}/c.csv",
    "analyze {in} -o {out}/a.svg --causes --critical-path --communication --heat-map",
    "analyze {in} -o {out}/a.html",
    "compare {good} {in} -q -o {out}/c.svg -o {out}/c.tex",
    "gate {in} --max-bubble 20% --max-time 100ms -o {out}/g.json",
    "gate {in} --baseline {good} --max-increase 1pt",
    "gate {good} --baseline {in} --promised-by {in}",
    "plan {in} -o {out}/p.csv -o {out}/p.json",
    "plan {in} --backward fused --memory-limit 3 -o {out}/p.svg",
    "simulate --from {in} --schedule 1f1b,zb-h1 -m 4",
    "layout {in} --layers-per-stage 4",
)
_RECORDING_COMMANDS = (
    "watch {in} --plain --interval 0.01 --stop-after 0.01",
    "watch {in} --plain --interval 0.01 --stop-after 0.01 --jsonl {out}/w.jsonl",
    "watch {in} --plain --interval 0.01 --stop-after 0.01 --anonymous --max-bubble schedule=1%",
    *_TABLE_COMMANDS,
)
_NCCL_COMMANDS = ("nccl {in} -j 1", "nccl {in} -v -o {out}/n.json -o {out}/n.csv", "{in}")
#: Valid profiles for commands that read conventions, orders and costs.
_RUN, _JAX_RUN = "{inputs}/nsys-sqlite/small", "{inputs}/nsys-sqlite/jax.sqlite"


@dataclass(frozen=True)
class InputKind:
    """A kind of input.

    Attributes:
        name: Name in counts and on the command line.
        write: Function that writes valid inputs to an empty folder. Each file or folder in this
            folder is one input.
        damages: Functions that damage a file but keep its format. Byte damage is always possible.
        commands: Command lines, one of which is drawn for each input.
    """

    name: str
    write: Callable[[Path], None]
    damages: Sequence[Damage]
    commands: Sequence[str]


def _export(folder: Path, planting: Planting) -> Path:
    """Simulate a run, and return its export, which is the only file in the folder."""
    plant(planting, folder)
    return folder / "node0.sqlite"


def _write_nsys(folder: Path) -> None:
    _export(folder / "small", _SMALL)
    _export(folder / "full", _FULL)
    plant(replace(_SMALL, servers=2, iterations=1, reduce_ns=300_000), folder / "servers")
    make_steps(3).written(folder)


def _write_columnar(folder: Path) -> None:
    """Write an nsys export as Parquet and Arrow files, in three forms."""
    export = _export(folder / "export", _SMALL)
    for name in ("parquet", "arrow", "parquet, texts in dictionaries"):
        target = folder / name.replace(" ", "-").replace(",", "")
        target.mkdir()
        write_columnar(export, target, FORMS[name])
    export.unlink()
    export.parent.rmdir()


def _write_kineto(folder: Path) -> None:
    """Write PyTorch profiler traces: compressed, uncompressed, and with allocations."""
    runs = {"gzipped": _FULL, "plain": _FULL, "memory": _SMALL}
    for name, planting in runs.items():
        (folder / name).mkdir()
        export = _export(folder / "export", replace(planting, devices="zero"))
        for trace in set_world_size(write_traces(export, folder / name), 2):
            if name == "memory":
                plant_memory(trace, Allocations(5_000, 2_000, 300, 800, 40_000))
            elif name == "plain":
                trace.with_suffix("").write_bytes(gzip.decompress(trace.read_bytes()))
                trace.unlink()
        export.unlink()
    (folder / "export").rmdir()


def _write_rocm(folder: Path) -> None:
    """Write rocprofv3 databases in two schema versions, and an rpd trace."""
    export = _export(folder / "export", _FULL)
    processes = read_processes(export)
    write_rocpd(folder / "merged.db", processes)
    write_rocpd(folder / "early.db", processes, release="6.4", link="correlation_id")
    write_rpd(folder / "trace.rpd", processes)
    export.unlink()
    export.parent.rmdir()


def _write_ascend(folder: Path) -> None:
    """Write databases of two ranks, and one of an older version without queued launches."""
    export = _export(folder / "export", _FULL)
    processes = read_processes(export)
    write_ascend(folder / "run", processes, is_queued=True, groups={"10.0.0.1%eth0_1": (0, 1)})
    (old,) = write_ascend(folder / "export", processes[:1], has_devices=False)
    old.rename(folder / "msprof_20250109.db")
    export.unlink()
    export.parent.rmdir()


def _write_xplane(folder: Path) -> None:
    (folder / "tpu.xplane.pb").write_bytes(make_space(make_tpu(2), ["host0"]))
    (folder / "gpu.xplane.pb").write_bytes(make_space(make_gpu(), ["host0"], refs=False))


def _write_xla_trace(folder: Path) -> None:
    (folder / "tpu.trace.json").write_bytes(make_trace_json(make_tpu(2)))
    packed = gzip.compress(make_trace_json(make_gpu()), mtime=0)
    (folder / "gpu.trace.json.gz").write_bytes(packed)


def _write_nccl_events(folder: Path) -> None:
    (folder / "ring").mkdir()
    write_ring(folder / "ring", count=3)
    transfers = [("Send", 1, 3, (0, 10, 20, 30)), ("Recv", 1, 4, (0, 10, 20, 30, 40))]
    (folder / "proxy.txt").write_text(make_proxy_file(transfers))


def _write_inspector_files(folder: Path) -> None:
    """Write files of NCCL Inspector, with and without the times of kernels."""
    for name, version, is_verbose in (("first", "v4.0", True), ("latest", "v4.4", False)):
        for rank in range(2):
            file = Inspector(pid=100 + rank, rank=rank, version=version, is_verbose=is_verbose)
            for number in range(3):
                start_ns = number * 1_000_000
                calls = [Call("AllReduce", number, start_ns, start_ns + 200_000 - 50_000 * rank)]
                sent = ("Send", "Recv")[rank]
                calls.append(Call(sent, number, start_ns, start_ns + 90_000, peer=1 - rank))
                file.add_dump(calls, dropped=number)
            file.write(folder / name)


def _write_flight_dumps(folder: Path, ending: str) -> None:
    entries = [make_entry("0", "all_reduce", 1, 5.0, 2.0), make_entry("0", "all_reduce", 2)]
    ranks = {0: entries, 1: entries, 2: [make_entry("4", "all_reduce", 1)], 3: []}
    write_dumps(folder / "dumps", ranks, ending)


def _list_operation_rows() -> list[tuple[int, int, int, str, int, int]]:
    """Return (rank, iteration, microbatch, phase, start, end) of operations on two stages."""
    return [
        (rank, iteration, number % 2, phase, start_ns, start_ns + 50_000)
        for iteration in range(2)
        for number, phase in enumerate(("F", "F", "BW", "BW", "Optimizer"))
        for rank in range(2)
        for start_ns in [100_000 * (10 * iteration + number) + 10_000 * rank]
    ]


def _list_operation_columns() -> dict[str, list[int | str]]:
    names = ("rank", "iteration", "microbatch", "phase", "start_ns", "end_ns")
    columns = zip(*_list_operation_rows(), strict=True)
    return dict(zip(names, map(list, columns), strict=True))


def _write_csv(folder: Path) -> None:
    paths = write_tables(folder, _list_operation_columns())
    packed = gzip.compress(paths["csv"].read_bytes(), mtime=0)
    (folder / "packed.csv.gz").write_bytes(packed)
    for kind in ("parquet", "arrow"):
        paths[kind].unlink()


def _write_arrow_tables(folder: Path) -> None:
    write_tables(folder, _list_operation_columns())["csv"].unlink()
    write_stream(folder / "stream.arrow", _list_operation_columns())


def _write_megascan(folder: Path) -> None:
    """Write MegaScan traces, with pairs of events and with complete events."""
    rows = [
        (rank, microbatch, phase, start_ns, end_ns)
        for rank, iteration, microbatch, phase, start_ns, end_ns in _list_operation_rows()
        if iteration == 0
    ]
    write_trace(folder / "pairs.json", rows)
    write_trace(folder / "whole.json", rows, as_one_event=True)


def _write_recordings(folder: Path) -> None:
    """Record two ranks with a fixed host name, process id and job id."""
    with (
        mock.patch("socket.gethostname", return_value="node0"),
        mock.patch("os.getpid", return_value=4_321),
        mock.patch.dict("os.environ", {"SLURM_JOB_ID": "7"}),
    ):
        for rank in range(2):
            names = [
                f"{phase} mb={microbatch} stage={rank}"
                for phase in ("F", "BW")
                for microbatch in (0, 1)
            ]
            record_names(folder / "run", [*names, "Optimizer"], 3, rank_and_size=(rank, 2))


def _run_command(*words: object) -> None:
    """Run a command on a valid input to create its output files.

    Raises:
        RuntimeError: The command failed.
    """
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        code = main([str(word) for word in words])
    if code != 0:
        raise RuntimeError(f"bubbleviz {' '.join(map(str, words))} ended with {code}")


def _write_reports(folder: Path) -> None:
    """Write saved reports on two synthetic runs."""
    for name, planting in {"small": _SMALL, "full": _FULL}.items():
        export = _export(folder / "export", planting)
        # A report contains the command line, and therefore the paths in the command line.
        with chdir(folder):
            _run_command("analyze", "export", "-q", "-j", 1, "-o", f"{name}.json")
        export.unlink()
    (folder / "export").rmdir()


def _write_conventions(folder: Path) -> None:
    text = (CHECKOUT / "bubbleviz" / "conventions" / "frameworks" / "zero_bubble.toml").read_text()
    (folder / "zero_bubble.toml").write_text(text)
    kinds = "communication = ['^my_nccl', 'a2a']\nhelper_threads = ['pt_data_worker', 'watchdog']\n"
    (folder / "kinds.toml").write_text(f'name = "kinds"\n{kinds}')


def _write_activities(folder: Path) -> None:
    """Write a list of host activities."""
    text = """
        [[activity]]
        name = "data loading"
        meaning = "the next batch was loaded"
        strength = 3
        match = ['dataloader', '^next_batch$']

        [[activity]]
        name = "checkpoint"
        meaning = "a checkpoint was written"
        strength = 2
        match = ['save_.*']
    """
    (folder / "activities.toml").write_text(textwrap.dedent(text))


def _write_orders(folder: Path) -> None:
    simulate = ("simulate", "-p", 2, "-m", 2, "--tf", 9, "--tb", 9, "--tw", 9)
    _run_command(*simulate, "--schedule", "zb-h1", "-o", folder / "zb-h1.csv")
    _run_command(*simulate, "--schedule", "1f1b", "-o", folder / "1f1b.csv")


def _write_layers(folder: Path) -> None:
    layers = [(f"layers.{n}", 1.0 + n / 4, 2.0, 1.0, 1) for n in range(6)]
    header = ("name", "forward_ms", "backward_ms", "weight_ms", "memory")
    (folder / "layers.csv").write_text(format_csv(header, layers), encoding="utf-8")


def _write_costs(folder: Path) -> None:
    run = folder / "jax.sqlite"
    make_steps(3).written(folder)
    for suffix in ("pbtxt", "pb"):
        _run_command("pgle", run, "-j", 1, "-q", "-o", folder / f"costs.{suffix}")
    run.unlink()


def _list_kinds() -> list[InputKind]:
    """Return all kinds of inputs, with their commands and their damage functions."""
    layout = "layout --layers {in} -p 2 -m 4"
    order = "simulate --plan {in} --tf 9 --tb 9 --tw 9 -o {out}/s.json"
    convention = "--convention {in} -j 1"
    return [
        InputKind("nsys sqlite", _write_nsys, (damage_database,), _PROFILE_COMMANDS),
        InputKind("nsys tables", _write_columnar, (damage_arrow,), _PROFILE_COMMANDS),
        InputKind("pytorch json", _write_kineto, (damage_json,), _PROFILE_COMMANDS),
        InputKind("rocm", _write_rocm, (damage_database,), _PROFILE_COMMANDS),
        InputKind("ascend", _write_ascend, (damage_database,), _PROFILE_COMMANDS),
        InputKind("xplane", _write_xplane, (damage_space,), _PROFILE_COMMANDS),
        InputKind("xla json", _write_xla_trace, (damage_json,), _PROFILE_COMMANDS),
        InputKind("nccl events", _write_nccl_events, (damage_lines, damage_json), _NCCL_COMMANDS),
        InputKind(
            "nccl inspector",
            _write_inspector_files,
            (damage_lines, damage_json_lines),
            _NCCL_COMMANDS,
        ),
        InputKind(
            "flight recorder",
            lambda folder: _write_flight_dumps(folder, ""),
            (damage_pickle,),
            _NCCL_COMMANDS,
        ),
        InputKind(
            "flight json",
            lambda folder: _write_flight_dumps(folder, ".json"),
            (damage_json,),
            _NCCL_COMMANDS,
        ),
        InputKind("csv", _write_csv, (damage_csv,), _TABLE_COMMANDS),
        InputKind("arrow tables", _write_arrow_tables, (damage_arrow,), _TABLE_COMMANDS),
        InputKind("megascan", _write_megascan, (damage_json,), _TABLE_COMMANDS),
        InputKind("recordings", _write_recordings, (damage_json_lines,), _RECORDING_COMMANDS),
        InputKind("reports", _write_reports, (damage_json,), _REPORT_COMMANDS),
        InputKind(
            "conventions",
            _write_conventions,
            (damage_toml,),
            (
                f"analyze {_RUN} {convention}",
                f"inspect {_RUN} --convention {{in}}",
                f"idle {_RUN} {convention}",
                f"nccl {_RUN} {convention}",
            ),
        ),
        InputKind(
            "activities",
            _write_activities,
            (damage_toml,),
            (f"idle {_RUN} -j 1 -v --activities {{in}}",),
        ),
        InputKind(
            "orders",
            _write_orders,
            (damage_csv,),
            (order, f"analyze {_RUN} -j 1 --plan {{in}}"),
        ),
        InputKind("layers", _write_layers, (damage_csv,), (layout, f"{layout} --memory-limit 9")),
        InputKind(
            "costs",
            _write_costs,
            (damage_lines,),
            (
                f"pgle {_JAX_RUN} -j 1 --against {{in}} -o {{out}}/e.csv",
                f"pgle {_JAX_RUN} -j 1 --against {{in}}",
            ),
        ),
    ]


KINDS: Mapping[str, InputKind] = {kind.name: kind for kind in _list_kinds()}


def folder_of(kind: InputKind, inputs: Path) -> Path:
    """Return the folder that contains the valid inputs of a kind."""
    return inputs / kind.name.replace(" ", "-")


def write_inputs(inputs: Path) -> None:
    """Write the valid inputs of all kinds to a new folder.

    The inputs are the same every time.
    """
    for kind in KINDS.values():
        folder = folder_of(kind, inputs)
        folder.mkdir(parents=True)
        kind.write(folder)
