"""Planted runs that use each framework's names are recognized, with all planted numbers.

A run is planted with zero-bubble's names, which are then rewritten in the export. The truth does
not change.
"""

from __future__ import annotations

import csv
import io
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz import annotate
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.range_names import parse_range_names
from bubbleviz.conventions.recognition import recognize_conventions
from bubbleviz.model.phases import Phase
from tests.planting import plant
from tests.planting.options import Planting
from tests.planting.truth import TrueOperation, Truth
from tests.support.command_line import CommandLine
from tests.support.notes import join_limitations
from tests.support.nsys_exports import C, ExportRows, K, R, write_profile
from tests.support.planted_runs import (
    check_ratios,
    list_reported_rows,
    list_true_rows,
    rank_numbers,
)

#: Returns the new name of a range given (rank, virtual stage, name), or None to remove the range.
Rename = Callable[[int, int | None, str], str | None]

BASE = Planting(stages=4, microbatches=6, kernel_gap_ns=3_000, jitter=0.1, transfer_ns=20_000)
PLAIN = replace(BASE, optimizer_ns=-1)
SPLIT = replace(PLAIN, schedule="zb-h1", autograd="named")

_NAME = re.compile(r"(?P<op>[A-Z_]+)(?P<dot>\.?)(?P<mb>\d+)\.(?P<chunk>\d+)\.0")


def rows_of(db: sqlite3.Connection) -> list[tuple[int, int, str, bool, int]]:
    """Return (row, process id, name, whether it is registered, type) of each named range."""
    query = (
        "SELECT n.rowid, (n.globalTid >> 24) & 0xFFFFFF, COALESCE(n.text, s.value), "
        "n.text IS NULL, n.eventType FROM NVTX_EVENTS AS n "
        "LEFT JOIN StringIds AS s ON s.id = n.textId AND n.text IS NULL"
    )
    return [(row, pid, name, bool(reg), kind) for row, pid, name, reg, kind in db.execute(query)]


def renamed(planting: Planting, folder: Path, rename: Rename) -> tuple[list[Path], Truth]:
    """Plant a run, and rename its ranges. Registered strings stay registered."""
    truth = plant(planting, folder)
    stages = {(o.rank, o.name): o.virtual_stage for o in truth.operations}
    paths = [folder / file.path for file in truth.files]
    for path in paths:
        ranks = {r.pid: r.rank for r in truth.ranks if folder / r.file == path}
        with closing(sqlite3.connect(path)) as db:
            strings: dict[str, int] = {
                v: i for i, v in db.execute("SELECT id, value FROM StringIds")
            }
            for row, pid, name, registered, _ in rows_of(db):
                rank = ranks[pid]
                new = rename(rank, _stage(stages, rank, name), name)
                if new is None:
                    db.execute("DELETE FROM NVTX_EVENTS WHERE rowid = ?", (row,))
                elif registered:
                    if new not in strings:
                        strings[new] = max(strings.values()) + 1
                        db.execute("INSERT INTO StringIds VALUES (?, ?)", (strings[new], new))
                    db.execute(
                        "UPDATE NVTX_EVENTS SET textId = ? WHERE rowid = ?", (strings[new], row)
                    )
                else:
                    db.execute("UPDATE NVTX_EVENTS SET text = ? WHERE rowid = ?", (new, row))
            db.commit()
    return paths, truth


def _stage(stages: dict[tuple[int, str], int | None], rank: int, name: str) -> int | None:
    """Return the virtual stage of an operation, or of the operation to which a transfer belongs."""
    match = _NAME.fullmatch(name)
    if match is None:
        return stages.get((rank, name))
    key = f"{match['mb']}.{match['chunk']}.0"
    stage_of_key = stages.get((rank, name), stages.get((rank, f"F{key}")))
    return stage_of_key if stage_of_key is not None else stages.get((rank, f"B{key}"))


def templates(names: Mapping[str, str], keep: str | tuple[str, ...] | None = "") -> Rename:
    """Return a function that renames ranges by templates, keyed by operation or by complete name.

    Operations without a template are removed. Other ranges without a template stay if their names
    start with ``keep``.
    """

    def rename(rank: int, stage: int | None, name: str) -> str | None:
        match = _NAME.fullmatch(name)
        template = names.get(match["op"] if match else name)
        if template is None:
            return name if match is None and keep is not None and name.startswith(keep) else None
        return template.format(rank=rank, stage=stage, **(match.groupdict() if match else {}))

    return rename


TRANSFERS = {
    f"{way}_{pass_}WARD": f"{way}_{pass_[0]}"
    for way in ("SEND", "RECV")
    for pass_ in ("FOR", "BACK")
}


def torch_names(backward: str, tail: str = "") -> Rename:
    """Return names such as ``PP:1F3``, where ``backward`` is the name for a planted B."""
    words = {"F": "F", "B": backward, "W": "W", **TRANSFERS}
    return templates({op: f"PP:{{stage}}{word}{{mb}}{tail}" for op, word in words.items()})


def with_profiler_steps(others: Rename, tail: str = "") -> Rename:
    """Return names in which PyTorch's profiler marks the iterations."""

    def rename(rank: int, stage: int | None, name: str) -> str | None:
        mark = re.fullmatch(r"iter_\d+_(\d+)", name)
        return f"ProfilerStep#{mark[1]}{tail}" if mark else others(rank, stage, name)

    return rename


def native_names(rank: int, stage: int | None, name: str) -> str:
    """Return the name that bubbleviz.annotate gives to a range."""
    if mark := re.fullmatch(r"iter_\d+_(\d+)", name):
        return f"bubbleviz:iteration {mark[1]} rank={rank}"
    if name == "Optimizer":
        return annotate.phase(name).name
    match = _NAME.fullmatch(name)
    assert match is not None, name
    word = TRANSFERS.get(match["op"], match["op"])
    return annotate.phase(word, microbatch=int(match["mb"]), stage=stage).name


PITHTRAIN = templates(
    {
        "F": "forward chunk {mb} (phase{chunk})",
        "B": "backward chunk {mb} (phase{chunk})",
        "W": "weight chunk",
        **dict.fromkeys(TRANSFERS, "pipeline send/recv"),
    }
)


def joined(operations: Sequence[TrueOperation]) -> list[TrueOperation]:
    """Return the operations, with consecutive W joined into one operation."""
    result: list[TrueOperation] = []
    for operation in sorted(operations, key=lambda o: (o.rank, o.start_ns or 0)):
        previous = result[-1] if result else None
        follows = previous is not None and (previous.rank, previous.phase, previous.iteration) == (
            operation.rank,
            operation.phase,
            operation.iteration,
        )
        if operation.phase == "W" and follows and previous is not None:
            result[-1] = replace(
                previous,
                end_ns=operation.end_ns,
                file_end_ns=operation.file_end_ns,
                kernels=previous.kernels + operation.kernels,
                active_ns=previous.active_ns + operation.active_ns,
            )
        else:
            result.append(
                replace(operation, microbatch=None) if operation.phase == "W" else operation
            )
    return result


def deepspeed(prefix: str, engine: str = "DeepSpeedEngine") -> Rename:
    calls = {"F": "forward", "B": "backward", "Optimizer": "step"}
    return templates({op: f"{prefix}{engine}.{call}" for op, call in calls.items()}, None)


OURS = r"""
name = "ours"
[[pattern]]
glob = "* mb=*"
match = '^(?P<phase>fwd|bwd|wgrad) mb=(?P<microbatch>[0-9]+) chunk=(?P<chunk>[0-9]+)\Z'
[pattern.phases]
fwd = "F"
bwd = "B"
wgrad = "W"

[[pattern]]
glob = "adam"
match = '^adam\Z'
phase = "Optimizer"
"""


WORDS = {
    op: f"{word} mb={{mb}} chunk={{chunk}}"
    for op, word in zip("FBW", ("fwd", "bwd", "wgrad"), strict=True)
}


def as_they_are(_: int, __: int | None, name: str) -> str:
    return name


V8 = replace(SPLIT, schedule="zb-v", microbatches=8)
STEPS = replace(BASE, iteration_ranges=True, iterations=3)
NATIVE = replace(
    BASE, microbatches=8, autograd="named", iteration_ranges=True, first_iteration=7, servers=2
)
OWN = replace(BASE, microbatches=8, iteration_ranges=True, first_iteration=4, autograd="named")
SEQ = ", seq = 12, op_id = 5, sizes = [[2, 3], []], input_op_ids = [(4,0)]"
#: (convention, expected part of the report, runs with their names).
#: The part is empty, a word, the names of iterations, or None to accept anything.
Case = tuple[str, str | tuple[str, ...] | None, Mapping[str, tuple[Planting, Rename]]]
GROUPS: tuple[Case, ...] = (
    (
        "torch-pipelining",
        "",
        {
            "1F1B": (PLAIN, torch_names("B")),
            "registered": (replace(PLAIN, text="registered"), torch_names("B")),
            "mixed": (replace(PLAIN, text="mixed", library_depth=3), torch_names("B")),
            "start/end": (replace(PLAIN, ranges="start_end"), torch_names("B")),
            "emit_nvtx": (PLAIN, torch_names("B", ", op_id = 5")),
            "emit_nvtx, seq": (replace(PLAIN, text="registered"), torch_names("B", SEQ)),
            "interleaved": (replace(V8, schedule="interleaved-1f1b", chunks=2), torch_names("B")),
            "zb-h1": (SPLIT, torch_names("I")),
            "zb-v": (V8, torch_names("I")),
            "zb-v, one file per rank": (replace(V8, files="rank"), torch_names("I")),
            "without transfers": (replace(PLAIN, communication=False), torch_names("B")),
        },
    ),
    (
        "torch-pipelining",
        None,
        {
            f"GPipe{tail}": (
                replace(PLAIN, schedule="gpipe"),
                templates({"F": f"Forward {{mb}}{tail}", "B": f"Backward {{mb}}{tail}"}),
            )
            for tail in ("", ", op_id = 5", ", seq = 3, op_id = 5")
        },
    ),
    (
        "torch-pipelining",
        ("7", "8", "9"),
        {
            "steps of PyTorch's profiler": (
                replace(PLAIN, iteration_ranges=True, first_iteration=7, iterations=3),
                with_profiler_steps(torch_names("B", ", op_id = 5"), ", op_id = 1"),
            )
        },
    ),
    (
        "bubbleviz",
        ("7", "8"),
        {
            schedule: (replace(NATIVE, schedule=schedule, chunks=chunks), native_names)
            for schedule, chunks in {"1f1b": 1, "interleaved-1f1b": 2, "zb-v": 2}.items()
        },
    ),
    (
        "zero-bubble",
        ("3", "4", "5"),
        {"steps": (replace(STEPS, first_iteration=3), with_profiler_steps(as_they_are))},
    ),
    (
        "zero-bubble",
        "inferred",
        {
            "optimizer": (replace(BASE, names="constant", iterations=3), as_they_are),
            "no optimizer": (replace(STEPS, names="constant", optimizer_ns=-1), as_they_are),
        },
    ),
    (
        "pithtrain",
        None,
        {"fused": (PLAIN, PITHTRAIN)}
        | {
            f"{schedule} {text}": (replace(V8, schedule=schedule, text=text), PITHTRAIN)
            for schedule in ("zb-v", "zb-h1")
            for text in ("text", "registered")
        },
    ),
    (
        "deepspeed",
        "inferred",
        {
            f"{prefix}{schedule} {text}": (
                replace(BASE, schedule=schedule, text=text, iterations=3),
                deepspeed(prefix),
            )
            for prefix in ("", "DeepSpeed:")
            for schedule in ("1f1b", "gpipe")
            for text in ("text", "registered")
        },
    ),
    (
        "ours",
        ("4", "5"),
        {
            f"{schedule} {text}": (
                replace(OWN, schedule=schedule, text=text),
                templates(WORDS | {"Optimizer": "adam"}, "iter_"),
            )
            for schedule in ("1f1b", "zb-v")
            for text in ("text", "registered")
        },
    ),
    # The user's names give the microbatches, and zero-bubble's names give the optimizer.
    # Both conventions therefore apply.
    ("", None, {"ours and a framework's": (BASE, templates(WORDS, ("iter_", "Optimizer")))}),
)
CASES = {
    f"{convention}, {name}": (convention, said, *case)
    for convention, said, cases in GROUPS
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_every_number_is_as_planted_whatever_names_are_used(name: str, tmp_path: Path) -> None:
    convention, expected_note, planting, rename = CASES[name]
    paths, truth = renamed(planting, tmp_path, rename)
    mine = tmp_path / "ours.toml"
    mine.write_text(OURS, encoding="utf-8")
    conventions = {"ours": [str(mine)], "": [str(mine), "zero-bubble"]}
    report = bubbleviz.analyze(paths, convention=conventions.get(convention, ()))

    exact = convention in ("bubbleviz", "pithtrain", "deepspeed") or expected_note == ""
    assert report.convention == convention or (
        not exact and report.convention.startswith(convention)
    )
    operations = joined(truth.operations) if convention == "pithtrain" else truth.operations
    assert list_reported_rows(report) == list_true_rows(report, truth, operations)
    check_ratios(report, truth)
    if isinstance(expected_note, tuple):
        assert [str(i.name) for i in report.iterations] == list(expected_note)
    elif expected_note:
        assert expected_note in join_limitations(report)
    if expected_note == "" or convention == "bubbleviz":
        assert report.limitations == ()
        ranks = rank_numbers(report, truth)
        stages = {ranks[r.rank]: r.stage for r in truth.ranks}
        assert stages == {r.index: r.stage for r in report.ranks}
    if convention == "bubbleviz":
        assert [rank.global_rank for rank in report.ranks] == [rank.index for rank in report.ranks]


@pytest.mark.parametrize("engine", ["DeepSpeedEngine", "PipelineEngine"])
def test_deepspeed_names_no_backward_on_inner_stages(engine: str, tmp_path: Path) -> None:
    planting = replace(BASE, iterations=3)
    names = deepspeed("", engine)
    paths, truth = renamed(
        planting,
        tmp_path,
        lambda rank, stage, name: (
            names(rank, stage, name) if rank == 3 or not name.startswith("B") else None
        ),
    )
    report = bubbleviz.analyze(paths)

    assert report.convention == "deepspeed"
    forward = [o for o in truth.operations if o.phase == "F"]
    expected = list_true_rows(report, truth, forward)
    assert [row for row in list_reported_rows(report) if row[3] == Phase.F] == expected
    for iteration in report.iterations:
        for ratio in iteration.ratios.values():
            assert ratio.value is None
    assert "no B or BW" in join_limitations(report) or "backward" in join_limitations(report), (
        join_limitations(report)
    )


@dataclass(frozen=True)
class Thunks:
    """Names of thunks (the instructions of a compiled program) in XLA."""

    forward: str = "TSL:Thunk:#name=jit(step)/jit(main)/jvp(x)/dot_general,hlo_op=fusion.{n}#"
    backward: str = (
        "TSL:Thunk:#name=jit(step)/jit(main)/transpose(jvp(x))/dot_general,hlo_op=fusion.{n}#"
    )
    transfer: str = "TSL:Thunk:#hlo_op=collective-permute.{n}#"
    module: str = "TSL:XlaModule:#hlo_module=jit_step,program_id=3#"


THUNKS = {
    "plain": Thunks(),
    "no domain": Thunks(
        forward=Thunks.forward.removeprefix("TSL:"),
        backward=Thunks.backward.removeprefix("TSL:"),
        transfer="Thunk:#hlo_op=collective-permute.{n},hlo_module=jit_step,program_id=3#",
        module="XlaModule:#prefix=jit(step),hlo_module=jit_step#",
    ),
    "newest": Thunks(
        forward="TSL:Thunk:#name=jit(step)/jvp(x)/dot,hlo_op=fusion.{n},unique_hlo_op_id={n}#",
        backward="TSL:Thunk:#name=jit(step)/transpose(jvp(x))/dot,hlo_op=fusion.{n},unique_hlo_op_id={n}#",
        transfer="TSL:Thunk:#name=jit(step)/ppermute,hlo_op=collective-permute-start.{n},unique_hlo_op_id={n}#",
        module="TSL:XlaModule:#prefix=jit(step),hlo_module=jit_step,program_id=12#",
    ),
}


def as_thunks(planting: Planting, folder: Path, thunks: Thunks) -> tuple[list[Path], Truth]:
    """Plant a run, and put each call of an operation into a separate range."""
    truth = plant(planting, folder)
    paths = [folder / file.path for file in truth.files]
    for path in paths:
        with closing(sqlite3.connect(path)) as db:
            number = 0
            ranges = db.execute(
                "SELECT rowid, start, end, globalTid, text FROM NVTX_EVENTS ORDER BY start"
            ).fetchall()
            for row, start, end, thread, text in ranges:
                db.execute("DELETE FROM NVTX_EVENTS WHERE rowid = ?", (row,))
                if text.startswith("iter_"):
                    names = [(start, end, thunks.module)]
                elif text[:4] in {"SEND", "RECV"}:
                    names = [(start, end, thunks.transfer)]
                else:
                    name = thunks.forward if text.startswith("F") else thunks.backward
                    calls = db.execute(
                        "SELECT start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME "
                        "WHERE globalTid = ? AND start >= ? AND end <= ?",
                        (thread, start, end),
                    ).fetchall()
                    names = [(a - 50, b + 50, name) for a, b in calls]
                for begin, stop, name in names:
                    number += 1
                    db.execute(
                        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) "
                        "VALUES (?, ?, 59, ?, ?)",
                        (begin, stop, name.format(n=number), thread),
                    )
            db.commit()
    return paths, truth


XLA = replace(PLAIN, iteration_ranges=True, iterations=3, kernels=4)


@pytest.mark.parametrize("name", THUNKS)
def test_jax_thunks_of_one_microbatch_are_read(name: str, tmp_path: Path) -> None:
    paths, truth = as_thunks(replace(XLA, microbatches=1), tmp_path, THUNKS[name])
    report = bubbleviz.analyze(paths)

    assert report.convention == "jax-xla"
    assert list_reported_rows(report, microbatch=False) == list_true_rows(
        report, truth, truth.operations, microbatch=False
    )
    check_ratios(report, truth)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_jax_thunks_of_many_microbatches_are_read(schedule: str, tmp_path: Path) -> None:
    """Names contain no microbatch. All operations are kept, and inferred numbers are reported.

    A receive between thunks of one pass is a wait, not work. Otherwise, the ratio would be too
    small.
    """
    paths, truth = as_thunks(replace(XLA, schedule=schedule), tmp_path, THUNKS["newest"])
    report = bubbleviz.analyze(paths)

    assert report.convention == "jax-xla"
    rows = list_reported_rows(report, microbatch=False)
    true = list_true_rows(report, truth, truth.operations, microbatch=False)
    assert {row[3] for row in rows} == {Phase.F, Phase.BW}
    assert sum(row[5] for row in rows) == sum(row[5] for row in true)
    assert len(report.iterations) == 3
    assert "microbatch" in join_limitations(report)
    for measured_iteration, iteration in zip(report.iterations, truth.iterations, strict=True):
        for ratio in ("schedule", "stage") if schedule == "1f1b" else ():
            value, expected = measured_iteration.ratios[ratio].value, iteration.bubble_ratio[ratio]
            assert value is None or value == pytest.approx(expected, abs=0.005), ratio


def modules(folder: Path, pid: int, names: Sequence[str]) -> Path:
    """Write one JAX process that runs these modules. Only ``jit_step`` contains both passes."""
    passes = {
        "jit_init": (),
        "jit_eval": (Thunks.forward,),
        "jit_step": (Thunks.forward, Thunks.backward),
    }
    rows = ExportRows(pid)
    for n, name in enumerate(names):
        start = 1_000 * n + 1_000 * (4 - len(names)) + 50 * pid
        rows.add_range(start, start + 900, f"TSL:XlaModule:#hlo_module={name}#")
        for k, thunk in enumerate(passes[name]):
            start_ns = start + 100 + 400 * k
            rows.add_range(start_ns, start_ns + 50, thunk.format(n=k))
            rows.launch(start_ns + 10, start_ns + 30, start_ns + 330, took=10)
    return rows.write(folder, name=f"{pid}.sqlite", hostname="one")


@pytest.mark.parametrize("extra_name", ["jit_init", "jit_eval"])
def test_jax_modules_without_both_passes_belong_to_no_iteration(
    extra_name: str, tmp_path: Path
) -> None:
    paths = [
        modules(tmp_path, 1, ["jit_step"] * 3),
        modules(tmp_path, 2, [extra_name, *["jit_step"] * 3]),
    ]
    report = bubbleviz.analyze(paths)

    training = [i for i in report.iterations if i.kind == "training"]
    assert [i.name for i in training] == ["0", "1", "2"]
    assert all(i.complete and len(i.ranks) == 2 for i in training)
    t = report.operations
    index = {i.index for i in training}
    for iteration in index:
        rows = [r for r in range(len(t)) if t.iteration[r] == iteration]
        starts = [min(int(t.start_ns[r]) for r in rows if t.rank[r] == k) for k in (0, 1)]
        assert abs(starts[0] - starts[1]) < 100


def layered(path: Path, layers: int) -> None:
    """Add layer ranges to each F and B, so that every call is inside one of them."""
    with closing(sqlite3.connect(path)) as db:
        ranges = db.execute(
            "SELECT start, end, globalTid, text FROM NVTX_EVENTS "
            "WHERE text GLOB '[FB][0-9]*.[0-9]*.[0-9]*'"
        ).fetchall()
        for start, end, thread, text in ranges:
            word = "forward" if text.startswith("F") else "backward"
            bounds = [start + (end - start) * n // layers for n in range(layers + 1)]
            db.executemany(
                "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) "
                "VALUES (?, ?, 59, ?, ?)",
                [
                    (a, b, f"MFSDP transformer block {n} {word}", thread)
                    for n, (a, b) in enumerate(pairwise(bounds))
                ],
            )
        db.commit()


@pytest.mark.parametrize("layers", [3, 30])
def test_layers_inside_operations_change_no_number(layers: int, tmp_path: Path) -> None:
    truth = plant(BASE, tmp_path)
    paths = [tmp_path / file.path for file in truth.files]
    for path in paths:
        layered(path, layers)
    report = bubbleviz.analyze(paths)

    assert report.convention == "zero-bubble"
    assert list_reported_rows(report) == list_true_rows(report, truth, truth.operations)
    check_ratios(report, truth)


def test_layers_without_operations_around_them_are_work() -> None:
    (convention,) = recognize_conventions({"MFSDP embedding forward": 3, "iter_0_1": 1})

    assert convention == built_in()["megatron-core"]


def test_a_naming_with_layers_inside_operations_keeps_its_transfers() -> None:
    receive = "megatron.core.pipeline_parallel.p2p_communication.recv_forward"
    conventions = recognize_conventions({"F0.0.0": 8, "layer_3f": 80, receive: 4})

    assert [c.name for c in conventions] == ["zero-bubble", "megatron-core"]
    names = parse_range_names(["layer_3f", receive], *conventions)
    assert names.phase.tolist() == [-1, Phase.RECV_F]


def pair(folder: Path, name: str, forward: Sequence[str], backward: Sequence[str]) -> Path:
    """Write one rank that runs forwards, a pair with two kernels, and backwards."""
    ranges, calls, kernels = [], [], []
    for i, text in enumerate([*forward, name, *backward]):
        start_ns = 1_000 * i
        ranges.append(R(start_ns, start_ns + 400, text))
        for k in range(2):
            calls.append(C(start_ns + 100 + 100 * k, start_ns + 150 + 100 * k, 2 * i + k))
            kernels.append(K(start_ns + 200 + 300 * k, start_ns + 450 + 300 * k, 2 * i + k))
    return write_profile(folder, kernels, calls, ranges)


PAIRS = {
    "torch": ("PP:(0F1;1B0)OVERLAP_F_B", ["PP:0F0", "PP:1F0"], ["PP:0B0", "PP:1B1"], "1;0", "0;1"),
    "pithtrain": (
        "forward chunk 1 (phase0) backward chunk 0 (phase1)",
        ["forward chunk 0 (phase0)", "forward chunk 0 (phase1)"],
        ["backward chunk 0 (phase0)", "weight chunk"],
        "1;0",
        "0;1",
    ),
    "pithtrain, same chunk": (
        "forward chunk 12 (phase1) backward chunk 7 (phase1)",
        ["forward chunk 7 (phase1)"],
        ["backward chunk 12 (phase1)"],
        "12;7",
        "1;1",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_an_overlapped_pair_is_one_operation(name: str, tmp_path: Path, cli: CommandLine) -> None:
    text, forward, backward, microbatch, chunk = PAIRS[name]
    path = pair(tmp_path, text, forward, backward)

    rows = list(csv.DictReader(io.StringIO(cli.printed("analyze", str(path), "--csv", "-"))))
    pairs = [row for row in rows if row["phase"] == "FB"]
    end_ns = 1_000 * len(forward)

    assert len(pairs) == 1
    assert (pairs[0]["microbatch"], pairs[0]["chunk"]) == (microbatch, chunk)
    assert (pairs[0]["start_ns"], pairs[0]["end_ns"]) == (str(end_ns + 200), str(end_ns + 750))
    assert (pairs[0]["kernels"], pairs[0]["active_ns"]) == ("2", "500")
    assert pairs[0]["name"] == text
    assert len(rows) == 1 + len(forward) + len(backward)
    assert {row["iteration"] for row in rows} == {"0"}
