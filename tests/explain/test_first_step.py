"""The extra time of the first iteration, which stages spend one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.explain.first_step import FirstStep
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine

_MS = 1_000_000
#: Usual time of a forward; a backward takes twice as long.
_FORWARD_MS = 2
#: (stage, phase, microbatch)
_Key = tuple[int, str, int]


def order_stage(stage: int, n_stages: int, n_microbatches: int) -> Iterator[tuple[str, int]]:
    """Yield the operations of a stage in the order of 1F1B."""
    n_ahead = min(n_stages - stage, n_microbatches)
    for microbatch in range(n_ahead):
        yield "F", microbatch
    for microbatch in range(n_microbatches):
        yield "BW", microbatch
        if microbatch + n_ahead < n_microbatches:
            yield "F", microbatch + n_ahead


def simulate(
    n_stages: int, n_microbatches: int, extra_ms: dict[_Key, int], begin_ms: int
) -> dict[_Key, tuple[int, int]]:
    """Return start and end of each operation of an iteration, in ms.

    Every operation starts as soon as its input and the previous operation of its stage have ended.
    """
    orders = {s: list(order_stage(s, n_stages, n_microbatches)) for s in range(n_stages)}
    free = dict.fromkeys(range(n_stages), begin_ms)
    times: dict[_Key, tuple[int, int]] = {}
    while any(orders.values()):
        for stage, order in orders.items():
            if not order:
                continue
            phase, microbatch = order[0]
            if phase == "F":
                needed = (stage - 1, "F", microbatch) if stage else None
            else:
                is_last = stage == n_stages - 1
                needed = (stage, "F", microbatch) if is_last else (stage + 1, "BW", microbatch)
            if needed is not None and needed not in times:
                continue
            start = max(free[stage], times[needed][1] if needed else begin_ms)
            length = _FORWARD_MS * (1 if phase == "F" else 2)
            free[stage] = start + length + extra_ms.get((stage, phase, microbatch), 0)
            times[stage, phase, microbatch] = start, free[stage]
            order.pop(0)
    return times


def write_table(
    path: Path, extra_ms: dict[_Key, int], *, n_stages: int = 4, iterations: int = 5
) -> list[int]:
    """Write a table of operations, and return the length of each iteration in ms.

    Args:
        path: Path of the CSV file.
        extra_ms: Extra time of operations in the first iteration.
        n_stages: Number of stages.
        iterations: Number of iterations.
    """
    lines = ["rank,iteration,phase,microbatch,chunk,start_ns,end_ns"]
    lengths, begin_ms = [], 100
    for iteration in range(iterations):
        times = simulate(n_stages, 6, extra_ms if iteration == 0 else {}, begin_ms)
        lines += [
            f"{stage},{iteration},{phase},{microbatch},0,{start * _MS},{end * _MS}"
            for (stage, phase, microbatch), (start, end) in times.items()
        ]
        end_ms = max(end for _, end in times.values())
        lengths.append(end_ms - begin_ms)
        begin_ms = end_ms
    path.write_text("\n".join(lines) + "\n")
    return lengths


def measure(folder: Path, extra_ms: dict[_Key, int], **sizes: int) -> FirstStep | None:
    """Write a table of operations, and return the extra time of its first iteration."""
    write_table(folder / "run.csv", extra_ms, **sizes)
    return bubbleviz.analyze(folder / "run.csv").explanation.first_step


def compile_all(forward_ms: Sequence[int], backward_ms: Sequence[int]) -> dict[_Key, int]:
    """Return the extra times if each stage compiles in its first forward and first backward."""
    forwards = {(stage, "F", 0): extra for stage, extra in enumerate(forward_ms)}
    return forwards | {(stage, "BW", 0): extra for stage, extra in enumerate(backward_ms)}


def test_stages_that_compile_one_after_another(tmp_path: Path) -> None:
    forward_ms, backward_ms = [50, 60, 70, 80], [90, 100, 110, 120]
    extra_ms = compile_all(forward_ms, backward_ms)
    lengths = write_table(tmp_path / "run.csv", extra_ms)
    step = bubbleviz.analyze(tmp_path / "run.csv").explanation.first_step

    assert step is not None
    assert [(s.forward_ns, s.backward_ns) for s in step.stages] == [
        (forward * _MS, backward * _MS)
        for forward, backward in zip(forward_ms, backward_ms, strict=True)
    ]
    assert (step.length_ns, step.usual_ns) == (lengths[0] * _MS, lengths[1] * _MS)
    total_ms = sum(forward_ms + backward_ms)
    assert step.total_ns == step.elapsed_ns == total_ms * _MS
    assert step.longest_ns == 200 * _MS
    assert step.is_serial
    # The first iteration does not wait for all of it: stage 0 runs further forwards meanwhile.
    assert step.saving_ns == (min(total_ms, lengths[0] - lengths[1]) - 200) * _MS


def test_the_saving_is_that_of_a_run_whose_stages_start_together(tmp_path: Path) -> None:
    """The warm-up before the first iteration takes as long as that of the slowest stage."""
    extra_ms = compile_all([40] * 4, [80] * 4)
    first, usual, *_ = write_table(tmp_path / "run.csv", extra_ms)
    step = bubbleviz.analyze(tmp_path / "run.csv").explanation.first_step

    assert step is not None
    together_ms = (40 + 80) + usual
    assert step.saving_ns == pytest.approx((first - together_ms) * _MS, rel=0.03)


def test_stages_that_warm_up_at_the_same_time(tmp_path: Path) -> None:
    """While the pipeline fills, stage 3 runs microbatch 0 when stage 0 runs microbatch 3."""
    step = measure(tmp_path, {(stage, "F", 3 - stage): 400 for stage in range(4)})

    assert step is not None
    assert step.is_together
    assert (step.longest_ns, step.elapsed_ns) == (400 * _MS, 400 * _MS)
    assert (step.total_ns, step.saving_ns) == (1600 * _MS, 0)


def test_a_single_stage_that_warms_up(tmp_path: Path) -> None:
    step = measure(tmp_path, {(2, "F", 0): 500})

    assert step is not None
    assert [(stage.stage, stage.extra_ns) for stage in step.stages] == [(2, 500 * _MS)]
    assert step.saving_ns == 0
    assert not step.is_serial


def test_the_host_is_in_a_range_that_compiles(tmp_path: Path, cli: CommandLine) -> None:
    planting = Planting(
        stages=2,
        microbatches=4,
        iterations=4,
        pause_device=1,
        pause_every=10,
        pause_ns=100 * _MS,
        pause_dry=True,
        stall_range="backend_compile (dynamo_timed)",
    )
    plant(planting, tmp_path)
    step = bubbleviz.analyze(tmp_path).explanation.first_step

    assert step is not None
    (stage,) = step.stages
    assert stage.forward_ns == pytest.approx(100 * _MS, rel=0.02)
    assert stage.activity == "backend_compile (dynamo_timed)"
    screen = " ".join(cli.printed("analyze", tmp_path, "--skip", "1").split())
    assert "longer than later ones: only stage 1 warms up, for 100.0 ms" in screen


@pytest.mark.parametrize("extra", [0, 1, 10])
def test_a_first_iteration_of_about_the_usual_length(extra: int, tmp_path: Path) -> None:
    assert measure(tmp_path, compile_all([extra] * 4, [0] * 4)) is None


@pytest.mark.parametrize("iterations", [1, 2])
def test_without_later_iterations_nothing_is_known(iterations: int, tmp_path: Path) -> None:
    assert measure(tmp_path, compile_all([50] * 4, [50] * 4), iterations=iterations) is None


def test_a_first_iteration_outside_the_window_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    write_table(path, compile_all([50] * 4, [50] * 4))

    assert bubbleviz.analyze(path, window="iteration:1-4").explanation.first_step is None
    assert bubbleviz.analyze(path, skip=1).explanation.first_step is not None


def test_outputs(tmp_path: Path, cli: CommandLine) -> None:
    path = tmp_path / "run.csv"
    write_table(path, compile_all([5_000] * 4, [9_000] * 4))

    screen = " ".join(cli.printed("analyze", path, "--skip", "1").split())
    assert (
        "First iteration: takes 56.00 s longer than later ones: 4 stages warm up one after "
        "another, 56.00 s in total and at most 14.00 s each. A forward and a backward of all "
        "stages at once, before it, would save up to 42.00 s"
    ) in screen
    assert cli.printed("analyze", path, "-q", "-o", tmp_path / "run.md") == ""
    assert "First iteration: takes 56.00 s longer" in (tmp_path / "run.md").read_text()
    tables = cli.printed("analyze", path, "-v", "operations")
    assert "Iteration 0: extra time compared with later iterations, by stage" in tables
    entry = cli.json("analyze", path, "--json", "-")["first_step"]
    assert entry["iteration"] == 0
    assert entry["saving_ns"] == 42_000_000_000
    assert entry["stages"][3] == {
        "stage": 3,
        "rank": 3,
        "forward_ns": 5_000_000_000,
        "backward_ns": 9_000_000_000,
        "activity": None,
    }
