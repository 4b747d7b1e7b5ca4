"""Iterations of a rank, and range names of serving frameworks."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.interpret.iterations import build_host_order, number_iterations
from bubbleviz.model.columns import NONE
from bubbleviz.model.phases import Phase
from bubbleviz.render.formats.csv import list_columns, write_csv
from bubbleviz.report.methods import write_methods
from bubbleviz.report.restrictions import ITERATIONS_UNDIVIDED, ITERATIONS_UNMARKED
from bubbleviz.report.sentences import describe_first_steps
from tests.planting import Planting, plant
from tests.support.forward_runs import Chunk, Serving, simulate_serving
from tests.support.nsys_exports import ExportRows
from tests.support.planted_runs import analyze_planting
from tests.support.torch_traces import write_traces

# Tests of the assignment of operations to iterations, in small profiles written by hand.

TRAINING = ("F0.0.0", "F1.0.0", "B0.0.0", "B1.0.0", "Optimizer")


class Host:
    """A host that opens ranges one after another, each with a call and a kernel of 8 ns."""

    def __init__(self, pid: int = 1) -> None:
        """Begin at time 0."""
        self.now = 0
        self.rows = ExportRows(pid)

    def run(self, *names: str) -> Host:
        for name in names:
            self.rows.add_range(self.now, self.now + 8, name)
            self.rows.launch(self.now + 1, self.now + 2, self.now + 10)
            self.now += 10
        return self

    def marked(self, mark: str, *names: str) -> Host:
        start_ns = self.now
        self.run(*names)
        self.rows.add_range(start_ns, self.now, mark)
        return self

    def write(self, folder: Path, name: str = "a.sqlite") -> Path:
        return self.rows.write(folder, name=name, hostname="one")


def test_an_evaluation_between_named_iterations_belongs_to_neither(tmp_path: Path) -> None:
    host = Host()
    host.marked("iter_0_5", *TRAINING)
    host.marked("iter_0_6", *TRAINING[:4]).run("Optimizer")
    host.run("F0.0.0", "F1.0.0", "F0.0.0", "F1.0.0")
    host.marked("iter_0_7", *TRAINING)

    report = bubbleviz.analyze(host.write(tmp_path))

    assert [(i.name, i.kind, i.complete) for i in report.iterations] == [
        ("5", "training", True),
        ("6", "training", True),
        ("after 6", "evaluation", True),
        ("after 6 (2)", "evaluation", True),
        ("7", "training", True),
    ]
    assert len({i.ratios["schedule"].value for i in report.iterations[:2]}) == 1


def test_a_mark_without_a_forward_shows_where_its_iteration_begins(tmp_path: Path) -> None:
    host = Host()
    for number in (3, 4):
        host.marked(f"iter_0_{number}").run(*TRAINING)

    report = bubbleviz.analyze(host.write(tmp_path))

    assert [(i.name, i.complete) for i in report.iterations] == [("3", True), ("4", True)]


def test_evaluations_pair_across_ranks_by_the_iteration_they_follow(tmp_path: Path) -> None:
    paths = []
    for pid in (1, 2):
        host = Host(pid)
        if pid == 1:
            host.run("F0.0.0", "F1.0.0")
        host.marked(f"iter_{pid}_5", *TRAINING).run("F0.0.0", "F1.0.0")
        host.marked(f"iter_{pid}_6", *TRAINING)
        paths.append(host.write(tmp_path, f"{pid}.sqlite"))

    report = bubbleviz.analyze(paths)

    assert [(i.name, len(i.ranks)) for i in report.iterations] == [
        ("before 5", 1),
        ("5", 2),
        ("after 5", 2),
        ("6", 2),
    ]


def test_the_name_of_an_operation_may_contain_its_iteration(tmp_path: Path) -> None:
    operations = naming(
        tmp_path,
        "glob = 'it*'\nmatch = '^it(?P<iteration>\\d+) (?P<phase>F|B) (?P<microbatch>\\d+)$'",
    )
    host = Host()
    for number in (7, 8, 9):
        first = 2 * (number - 7)
        host.run(*(f"it{number} {phase} {first + n}" for phase in "FB" for n in (0, 1)))

    report = bubbleviz.analyze(host.write(tmp_path), convention=operations)

    assert [(i.name, i.microbatches) for i in report.iterations] == [("7", 2), ("8", 2), ("9", 2)]


def test_a_rank_whose_backward_is_never_marked_is_not_called_cut(tmp_path: Path) -> None:
    paths = []
    for pid, names in ((1, ("forward", "step")), (2, ("forward", "backward", "step"))):
        host = Host(pid)
        for _ in range(3):
            host.run(*(f"DeepSpeedEngine.{name}" for name in names))
        paths.append(host.write(tmp_path, f"{pid}.sqlite"))

    report = bubbleviz.analyze(paths, convention="deepspeed")

    assert [i.complete for i in report.iterations] == [True, True, True]
    assert not any("cut" in limitation.what for limitation in report.limitations)
    assert any("no backward with GPU work" in str(limitation) for limitation in report.limitations)


def test_ranks_that_overlap_more_or_fewer_pairs_are_one_run(tmp_path: Path) -> None:
    paths = []
    for pid, overlapped in ((1, 2), (2, 4)):
        host = Host(pid)
        for _ in range(2):
            host.run(*(f"PP:0F{n}" for n in range(6 - overlapped)))
            for n in range(overlapped):
                host.run(f"PP:(0F{6 - overlapped + n};0B{n})OVERLAP_F_B")
            host.run(*(f"PP:0B{n}" for n in range(overlapped, 6)))
        paths.append(host.write(tmp_path, f"{pid}.sqlite"))

    report = bubbleviz.analyze(paths)

    assert [i.microbatches for i in report.iterations] == [6, 6]


UNDIVIDED = "iteration boundaries are unknown"


@pytest.mark.parametrize(
    ("ranges", "numbers"),
    [
        ("F0 B0 O F0 B0 O", "0 0 0 1 1 1"),
        ("F0 B0 O O F0 B0 O", "0 0 0 1 2 2 2"),
        ("F0 B0 O F0 B0 O O O", "0 0 0 1 1 1 2 3"),
        ("O O F0 B0 O F0 B0 O", "0 1 2 2 2 3 3 3"),
        # An Optimizer consists of two parts.
        ("F0 B0 O O", "0 0 0 0"),
        ("F0 B0 O O F0 B0 O O", "0 0 0 0 1 1 1 1"),
        ("F0 B0 O O O O F0 B0 O O", "0 0 0 0 1 1 2 2 2 2"),
        ("O O F0 B0 O O F0 B0 O O", "0 0 1 1 1 1 2 2 2 2"),
        # The capture begins between the two parts of an Optimizer.
        ("O F0 B0 O O F0 B0 O O", "0 1 1 1 1 2 2 2 2"),
        ("O O O F0 B0 O O F0 B0 O O", "0 1 1 2 2 2 2 3 3 3 3"),
        # The number of parts of an Optimizer is unknown.
        ("F0 B0 O O F0 B0 O O O", "0 0 0 0 1 1 1 1 1"),
        # Optimizers run inside backwards.
        ("F0 F1 B0 O O B1 O F0 F1 B0 O B1 O", "0 0 0 0 0 0 0 1 1 1 1 1 1"),
    ],
)
def test_optimizers_without_other_work_are_iterations_if_they_are_unambiguous(
    ranges: str, numbers: str
) -> None:
    assert numbers_of(ranges) == [numbers]


@pytest.mark.parametrize(
    ("ranges", "of_another", "numbers"),
    [
        ("F0 B0 O O F0 B0 O O", "F0 B0 O F0 B0 O F0 B0 O F0 B0 O", "0 0 0 1 2 2 2 3"),
        ("O O F0 B0 O O", "F0 B0 O F0 B0 O F0 B0 O F0 B0 O", "0 1 2 2 2 3"),
        # The other rank runs a different number of Optimizers.
        ("F0 B0 O O F0 B0 O O", "F0 B0 O F0 B0 O", "0 0 0 0 1 1 1 1"),
        # The Optimizers of the other rank are ambiguous.
        ("F0 B0 O O F0 B0 O O", "F0 F1 B0 O B1 O F0 F1 B0 O B1 O", "0 0 0 0 1 1 1 1"),
    ],
)
def test_ranks_that_run_equally_many_optimizers_step_together(
    ranges: str, of_another: str, numbers: str
) -> None:
    """A rank may be idle in every other iteration."""
    assert numbers_of(ranges, of_another)[0] == numbers


def numbers_of(*ranges: str) -> list[str]:
    """Return the iterations of the ranges of each rank."""
    names = [(rank, name) for rank, text in enumerate(ranges) for name in text.split()]
    phases = {"F": Phase.F, "B": Phase.BW, "O": Phase.OPTIMIZER}
    rank = np.array([number for number, _ in names])
    phase = np.array([phases[name[0]] for _, name in names])
    microbatch = np.array([int(name[1:] or NONE) for _, name in names])
    start_ns, mark = 10 * np.arange(len(names)), np.full(len(names), NONE)
    order = build_host_order(rank, phase, (microbatch,), (), mark, (start_ns, start_ns + 8))
    iteration = number_iterations(order, np.zeros(len(names), bool))
    return [" ".join(map(str, iteration[rank == number].tolist())) for number in range(len(ranges))]


def naming(folder: Path, *patterns: str) -> Path:
    """Return a convention with patterns, given as (glob, regex, further lines)."""
    file = folder / "mine.toml"
    file.write_text(
        "name = 'mine'\n" + "".join(f"[[pattern]]\n{pattern}\n" for pattern in patterns)
    )
    return file


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (("fwd", "bwd"), 0),
        (("fwd", "bwd") * 3, 1),
        (("fwd", "fwd", "bwd", "bwd") * 3, 1),
        (("fwd", "bwd", "step") * 3, 0),
        (("fwd 0", "bwd 0") * 3, 0),
        (("fwd 0", "fwd 1", "bwd 0", "bwd 1") * 3, 0),
    ],
)
def test_names_that_do_not_separate_iterations_are_reported(
    names: tuple[str, ...], count: int, tmp_path: Path
) -> None:
    operations = naming(
        tmp_path,
        *(
            f"glob = '{name}*'\nmatch = '^{name}( (?P<microbatch>[0-9]+))?$'\nphase = '{phase}'"
            for name, phase in {"fwd": "F", "bwd": "BW", "step": "Optimizer"}.items()
        ),
    )
    host = Host().run(*names)
    report = bubbleviz.analyze(host.write(tmp_path), convention=operations)

    notes = {note.what: note for note in report.limitations}
    assert (notes[UNDIVIDED].count if UNDIVIDED in notes else 0) == count
    assert (ITERATIONS_UNDIVIDED in report.restrictions) == (count > 0)
    assert count == 0 or len(report.iterations) == 1
    assert ("iteration boundaries are unknown" in write_methods(report)) == (
        count > 0 and report.no_pipeline is None
    )


@pytest.mark.parametrize(
    "schedule", ["1f1b", "gpipe", "looped-bfs", "zb-v", "interleaved-1f1b", "dualpipev"]
)
@pytest.mark.parametrize("stages", [2, 4])
def test_constant_names_without_iterations_give_no_stages(schedule: str, stages: int) -> None:
    planting = Planting(schedule=schedule, stages=stages, names="constant", optimizer_ns=-1)
    report = analyze_planting(replace(planting, iterations=3, jitter=0.1, transfer_ns=100_000))

    assert ITERATIONS_UNMARKED in report.restrictions
    assert {rank.stage for rank in report.ranks} == {None}
    assert report.summary.bubble_ratio["schedule"].mean is None
    assert not any("without a profile" in note.what for note in report.limitations)
    assert (describe_first_steps(report) or "").startswith(
        "Put each iteration in a named range, or record"
    )
    assert report.schedule is not None
    assert report.schedule.reason == "the iterations cannot be told apart"


@pytest.mark.parametrize("order", [(), (0, 1, 2, 3)])
def test_ratios_of_such_names_are_unknown_whatever_the_order_of_stages(
    order: tuple[int, ...], tmp_path: Path
) -> None:
    planting = Planting(schedule="gpipe", names="constant", optimizer_ns=-1, files="rank")
    plant(planting, tmp_path / "profiles")
    numbered_csv = write_csv(list_columns(analyze_planting(replace(planting, names="numbered"))))
    rows = list(csv.DictReader(numbered_csv.splitlines()))
    of_names = [name for name in rows[0] if name not in {"iteration", "occurrence", "name"}]
    table = tmp_path / "operations.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, of_names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**row, "microbatch": 0} for row in rows)

    for path in (tmp_path / "profiles", table):
        report = bubbleviz.analyze(path, order=order)
        assert ITERATIONS_UNMARKED in report.restrictions
        assert {spread.mean for spread in report.summary.bubble_ratio.values()} == {None}


@pytest.mark.parametrize(("microbatches", "is_named"), [(1, False), (8, True)])
def test_named_iterations_of_one_microbatch_are_distinguished(
    microbatches: int, *, is_named: bool
) -> None:
    planting = Planting(iterations=3, names="constant", optimizer_ns=-1, iteration_ranges=is_named)
    report = analyze_planting(replace(planting, microbatches=microbatches))

    assert ITERATIONS_UNMARKED not in report.restrictions
    assert all(iteration.complete for iteration in report.iterations)


# Tests with names of serving frameworks, in nsys exports and PyTorch traces.


TOKENS = (512, 2048, 64, 1024, 4096, 512, 64, 2048)
RUN = Serving([t / 1024 for t in TOKENS], (1.0, 1.5), transfer_ns=20_000, depth=2, host_ns=50_000)
#: Start of the complete recording, in ns.
_BEGIN_NS = 10_000_000


def export(folder: Path, names: Callable[[Chunk], list[str]], *, steps: bool = False) -> Path:
    """Write an export in which each chunk launches one kernel inside ranges with these names."""
    rows = ExportRows()
    for chunk in simulate_serving(RUN):
        rows.pid, start = 1 + chunk.stage, chunk.start_ns + _BEGIN_NS
        rows.launch(start - 5_000, start, chunk.end_ns + _BEGIN_NS, took=3_000)
        range_names = [*([f"ProfilerStep#{chunk.number + 7}"] if steps else []), *names(chunk)]
        for depth, name in enumerate(range_names):
            wide = 400 * (len(range_names) - depth)
            rows.add_range(start - 6_000 - wide, start - 1_900 + wide, name)
    return rows.write(folder)


def vllm(chunk: Chunk) -> list[str]:
    tokens = TOKENS[chunk.number]
    decodes = f"generation_{tokens}({tokens})" if tokens == 64 else "generation_0(0)"
    return [f"execute_context_{int(tokens != 64)}({tokens if tokens != 64 else 0})_{decodes}"]


def sglang(chunk: Chunk) -> list[str]:
    tokens = TOKENS[chunk.number]
    return [f"step[DECODE bs={tokens}]" if tokens == 64 else f"step[EXTEND bs=1 toks={tokens}]"]


def measured(path: Path | list[Path], convention: str) -> bubbleviz.Report:
    """Return the report on the planted run, after checking the planted values."""
    report = bubbleviz.analyze(path)
    assert report.convention == convention
    assert report.kind == "inference"
    assert [(i.kind, i.microbatches) for i in report.iterations] == [("inference", len(TOKENS))]
    assert [rank.stage for rank in report.ranks] == [0, 1]
    chunks = simulate_serving(RUN)
    complete = max(c.end_ns for c in chunks) - min(c.start_ns for c in chunks)
    busy = sum(c.end_ns - c.start_ns for c in chunks)
    ratio = report.summary.bubble_ratio["schedule"].mean
    assert ratio == pytest.approx(1 - busy / (2 * complete), abs=1e-9)
    return report


@pytest.mark.parametrize("names", [vllm, sglang])
@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("traced", [False, True])
def test_chunks_are_read_with_their_tokens(
    tmp_path: Path, names: Callable[[Chunk], list[str]], steps: bool, traced: bool
) -> None:
    path = export(tmp_path, names, steps=steps)
    profiles = write_traces(path, tmp_path) if traced else [path]
    report = measured(profiles, f"{names.__name__}")

    of_rank = report.operations.rank == 1
    assert report.operations.tokens[of_rank].tolist() == list(TOKENS)
    first = 7 if steps else 0
    assert report.operations.microbatch[of_rank].tolist() == [first + n for n in range(8)]
    for cost, speed in zip(report.explanation.chunk_costs, RUN.stages, strict=True):
        assert cost.n == len(TOKENS)
        assert cost.token_ns == pytest.approx(speed * 1e6 / 1024, rel=1e-6)
        assert cost.fixed_ns == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    ("name", "convention"),
    [("gpu_model_runner: forward", "vllm-scopes"), ("scheduler.run_batch", "sglang-scheduler")],
)
def test_scopes_alone_name_the_chunks(tmp_path: Path, name: str, convention: str) -> None:
    report = measured(export(tmp_path, lambda _: [name]), convention)

    assert (report.operations.tokens == -1).all()
    assert report.explanation.chunk_costs == ()


def test_scopes_inside_steps_are_not_separate_chunks(tmp_path: Path) -> None:
    path = export(tmp_path, lambda chunk: [*vllm(chunk), "gpu_model_runner: forward"])
    report = measured(path, "vllm")

    assert len(report.operations) == 2 * len(TOKENS)
    assert np.sort(report.operations.tokens).tolist() == sorted(2 * TOKENS)
