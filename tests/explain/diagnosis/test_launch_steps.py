"""If a host is the bottleneck, faster kernels save no more than the host allows.

Each job is simulated with and without its fault. bubbleviz reads only the table of the faulty job.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.sentences import write_all_advice
from bubbleviz.report.summary import AdviceEntry
from tests.support.needs import get_real_file
from tests.support.pipeline_jobs import Job, SimulatedJob, simulate_job

#: Time of the host per launch that makes it the bottleneck once the fault is removed.
HOST_MS = {"launch": 18.0, "start": 18.0, "end": 5.0}
JOB = Job(phase=(10.0, 10.0, 10.0))


def _advise(folder: Path, job: SimulatedJob) -> dict[str, AdviceEntry]:
    report = bubbleviz.analyze(job.written(folder / "operations.csv"))
    return {entry.place: entry for entry in write_all_advice(report)}


def _compute_saving(job: Job, faulty: Job) -> float:
    return 1 - simulate_job(job).length_ns / simulate_job(faulty).length_ns


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "gpipe"])
@pytest.mark.parametrize("follows", HOST_MS)
def test_a_slow_gpu_whose_host_is_slow_saves_what_the_host_allows(
    follows: str, schedule: str, tmp_path: Path
) -> None:
    job = replace(JOB, schedule=schedule, host_follows=follows, host_step={2: HOST_MS[follows]})
    faulty = replace(job, rank={2: 1.6})

    entry = _advise(tmp_path, simulate_job(faulty))["rank-2"]

    assert entry.saving_ratio == pytest.approx(_compute_saving(job, faulty), abs=0.01)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("depth", [3, 6])
@pytest.mark.parametrize("slow", [6, 7])
def test_waiting_for_a_full_queue_is_no_time_that_the_host_needs(
    slow: int, depth: int, schedule: str, tmp_path: Path
) -> None:
    step_ms = 19.5 if schedule == "1f1b" else 13.0
    job = replace(JOB, schedule=schedule, microbatches=16, host_step={5: step_ms}, host_queue=depth)
    faulty = replace(job, rank={slow: 1.6})
    without_host = replace(faulty, host_step={})

    entry = _advise(tmp_path, simulate_job(faulty))[f"rank-{slow}"]

    saving = _compute_saving(job, faulty)
    assert saving < _compute_saving(replace(without_host, rank={}), without_host) - 0.05
    assert entry.saving_ratio == pytest.approx(saving, abs=0.01)


@pytest.mark.parametrize("depth", [2, 4])
def test_a_fast_host_whose_queue_is_full_limits_nothing(depth: int, tmp_path: Path) -> None:
    hosts = dict.fromkeys(range(8), 0.5)
    job = replace(JOB, microbatches=16, host_step=hosts, host_queue=depth)
    faulty = replace(job, rank={5: 2.0})

    entry = _advise(tmp_path, simulate_job(faulty))["rank-5"]

    assert entry.saving_ratio == pytest.approx(_compute_saving(job, faulty), abs=0.01)


@pytest.mark.parametrize("every", [2, 3])
def test_a_queue_is_not_found_if_some_launches_are_unknown(every: int, tmp_path: Path) -> None:
    """The time from one known launch to the next is then that of several steps of the host."""
    job = replace(JOB, host_step=dict.fromkeys(range(8), 6.0), host_queue=3)
    faulty = replace(job, rank={5: 2.0})
    simulated = simulate_job(faulty)
    for row in simulated.rows[::every]:
        row.pop("launched_ns", None)

    entry = _advise(tmp_path, simulated)["rank-5"]

    assert entry.saving_ratio == pytest.approx(_compute_saving(job, faulty), abs=0.01)


@pytest.mark.parametrize("follows", HOST_MS)
def test_a_large_stage_of_a_slow_host_saves_what_the_host_allows(
    follows: str, tmp_path: Path
) -> None:
    faulty = replace(
        JOB, host_follows=follows, host_step={1: HOST_MS[follows]}, stage={1: 1.5}, iterations=8
    )
    even = replace(faulty, even_stages=True)

    entry = _advise(tmp_path, simulate_job(faulty))["stage-1"]

    assert entry.saving_ratio == pytest.approx(_compute_saving(even, faulty), abs=0.005)


@pytest.mark.parametrize("follows", [*HOST_MS, "input"])
def test_a_slow_host_alone_saves_all_its_delays(follows: str, tmp_path: Path) -> None:
    faulty = replace(JOB, host_follows=follows, host_step={5: HOST_MS.get(follows, 4.0) * 1.5})

    entry = _advise(tmp_path, simulate_job(faulty))["launch-5"]

    assert entry.saving_ratio == pytest.approx(_compute_saving(JOB, faulty), abs=0.005)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize(
    ("fault", "place"),
    [({"rank": {4: 1.85}}, "rank-4"), ({"link": {(-1, 0): 40.0}}, "link-0-1")],
    ids=["slow rank", "slow link"],
)
def test_a_late_loader_is_as_late_if_its_input_comes_sooner(
    fault: dict[str, dict[int, float]], place: str, schedule: str, tmp_path: Path
) -> None:
    job = replace(JOB, schedule=schedule, late={6: 51.0})
    faulty = replace(job, **fault)  # type: ignore[arg-type]  # each field has its own type

    entries = _advise(tmp_path, simulate_job(faulty))

    assert entries[place].saving_ratio == pytest.approx(_compute_saving(job, faulty), abs=0.005)


def test_a_host_that_waits_for_the_input_is_no_bottleneck(tmp_path: Path) -> None:
    job = replace(JOB, host_follows="input", host_step=dict.fromkeys(range(8), 0.5))
    faulty = replace(job, rank={2: 1.6})

    entry = _advise(tmp_path, simulate_job(faulty))["rank-2"]

    assert entry.saving_ratio == pytest.approx(_compute_saving(job, faulty), abs=0.005)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_host_that_may_launch_only_a_few_operations_ahead_is_no_bottleneck(
    ahead: int, tmp_path: Path
) -> None:
    job = replace(JOB, schedule="zb-h1", noise=0.002)
    faulty = replace(job, rank={2: 1.6})
    simulated = simulate_job(faulty)
    _delay_launches(simulated, ahead)

    entry = _advise(tmp_path, simulated)["rank-2"]

    assert entry.saving_ratio == pytest.approx(_compute_saving(job, faulty), abs=0.005)


def _delay_launches(job: SimulatedJob, ahead: int) -> None:
    """Let each operation be launched when the operation ``ahead`` positions before it starts."""
    of_rank: dict[tuple[int | str, int | str], list[int]] = {}
    for row in sorted(job.rows, key=lambda row: int(row["start_ns"])):
        if row["phase"] not in {"F", "B", "BW", "W"}:
            continue
        starts_ns = of_rank.setdefault((row["iteration"], row["rank"]), [])
        starts_ns.append(int(row["start_ns"]))
        if len(starts_ns) > ahead:
            row["launched_ns"] = starts_ns[-1 - ahead]


@pytest.mark.parametrize("microbatches", [16, 64])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_full_launch_queue_is_no_slow_host(
    schedule: str, microbatches: int, tmp_path: Path
) -> None:
    job = replace(JOB, schedule=schedule, microbatches=microbatches, iterations=4, noise=0.002)
    faulty = replace(job, rank={2: 1.6})
    simulated = simulate_job(faulty)
    _delay_launches(simulated, 3)

    entry = _advise(tmp_path, simulated)["rank-2"]

    assert entry.saving_ratio == pytest.approx(_compute_saving(job, faulty), abs=0.005)


def test_launches_long_before_the_iteration_do_not_make_it_longer(tmp_path: Path) -> None:
    job = replace(JOB, host_step={2: 5.0})
    faulty = replace(job, rank={2: 1.6})
    simulated = simulate_job(faulty)
    for row in simulated.rows:
        if row["rank"] == 2 and "launched_ns" in row:
            row["launched_ns"] = int(row["launched_ns"]) - 100_000_000

    entry = _advise(tmp_path, simulated)["rank-2"]

    assert entry.saving_ratio == pytest.approx(
        _compute_saving(JOB, replace(JOB, rank={2: 1.6})), abs=0.01
    )


def test_few_launches_reveal_nothing(tmp_path: Path) -> None:
    job = replace(JOB, microbatches=4, iterations=1, stages=2, replicas=4, host_step={2: 15.0})
    faulty = replace(job, rank={2: 1.6})
    simulated = simulate_job(faulty)
    launched = [row for row in simulated.rows if row["rank"] == 2 and "launched_ns" in row]
    for row in launched[5:]:
        del row["launched_ns"]
    without_host = replace(faulty, host_step={})

    entry = _advise(tmp_path, simulated)["rank-2"]

    saving = _compute_saving(replace(without_host, rank={}), without_host)
    assert entry.saving_ratio == pytest.approx(saving, abs=0.05)


@pytest.mark.real_files
def test_the_table_of_a_rank_whose_host_is_the_bottleneck() -> None:
    report = bubbleviz.analyze(get_real_file("cases/host-bound-rank.csv.gz"))

    first = write_all_advice(report)[0]

    assert first.place == "stage-1"
    assert first.saving_ratio == pytest.approx(0.086, abs=0.002)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "gpipe"])
@pytest.mark.parametrize("late", [(0, 1, 2, 3), (0, 3), (0, 1, 5)])
@pytest.mark.parametrize("depth", [0, 3])
def test_a_late_launch_behind_another_late_launch_stays_late(
    depth: int, late: tuple[int, ...], schedule: str, tmp_path: Path
) -> None:
    hosts = dict.fromkeys(range(8), 0.5) if depth else {}
    job = replace(JOB, schedule=schedule, host_step=hosts, host_queue=depth)
    faulty = replace(job, late={rank: 60.0 + rank for rank in late})

    entries = _advise(tmp_path, simulate_job(faulty)).values()

    first = next(iter(entries))
    assert first.kind == "launch"
    left = {rank: delay for rank, delay in faulty.late.items() if rank not in first.ranks}
    saving = _compute_saving(replace(job, late=left), faulty)
    assert first.saving_ratio == pytest.approx(saving, abs=0.01)
