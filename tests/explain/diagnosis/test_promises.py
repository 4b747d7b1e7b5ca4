"""Promised savings: the saving that advice predicts equals the saving of the changed job.

Each job is simulated operation by operation in plain Python, before and after the change. bubbleviz
reads only the table of the original job.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.report.sentences import describe_first_steps, write_all_advice
from bubbleviz.report.summary import AdviceEntry
from tests.support.pipeline_jobs import Job, SimulatedJob, simulate_job

pytestmark = pytest.mark.thorough

LENGTHS = (0.5, 1, 2, 0.7, 1.2, 3, 1, 0.6)
QUIET = Job(replicas=1, iterations=4, noise=0.0, phase=(10, 10, 10), transfer=0.0)
#: (stages, microbatches, imbalance, maximum saving).
#: Lin et al., arXiv 2505.05713, name uneven stages and lengths as the most common faults.
UNEVEN: dict[str, tuple[int, int, dict[str, dict[int, float]], float]] = {
    "two stages": (4, 8, {"stage": {1: 1.4, 3: 2.2}}, 0.2667),
    "last stage": (4, 16, {"stage": {3: 1.4}}, 0.1772),
    "last stage of eight": (8, 16, {"stage": {7: 2.0}}, 0.3365),
    "one long microbatch": (4, 8, {"microbatch": {3: 3.0}}, 0.25),
    "lengths": (4, 8, {"microbatch": dict(enumerate(LENGTHS))}, 0.2851),
    "every third microbatch": (4, 16, {"microbatch": dict.fromkeys(range(0, 16, 3), 2.0)}, 0.3125),
}
EVEN = {"even_stages": True, "even_microbatches": True}


def _advice(folder: Path, job: SimulatedJob) -> tuple[AdviceEntry, ...]:
    return write_all_advice(bubbleviz.analyze(job.written(folder / "operations.csv")))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("name", UNEVEN)
def test_promised_changes_lose_no_work(name: str, schedule: str, tmp_path: Path) -> None:
    stages, microbatches, uneven, max_saving = UNEVEN[name]
    job = replace(
        QUIET,
        schedule=schedule,
        stages=stages,
        microbatches=microbatches,
        **uneven,  # type: ignore[arg-type]  # of each field its own
    )
    faulty_job, repaired_job = (
        simulate_job(job),
        simulate_job(replace(job, even_stages=True, even_microbatches=True)),
    )
    saved = 1 - repaired_job.length_ns / faulty_job.length_ns
    first = _advice(tmp_path, faulty_job)[0]

    assert first.kind == ("stage" if "stage" in name else "microbatch")
    assert first.saving_ratio == pytest.approx(saved, abs=0.002)
    assert "(up to -" in first.text
    assert first.text.count("Move layers") == len(first.stages[:1])
    if schedule == "1f1b":
        assert saved == pytest.approx(max_saving, abs=0.0015)


BASE = Job()
FOUR = replace(BASE, replicas=4)
LONG = replace(BASE, iterations=10)
GAPS = dict.fromkeys(range(8), 0.12)
#: (job, fault, job without the fault, kind of the advice, ranks of the advice).
#: Ranks are not compared if they are empty.
FAULTS: dict[str, tuple[Job, dict[str, Any], dict[str, Any], str, tuple[int, ...]]] = {
    "rank": (BASE, {"rank": {6: 1.5}}, {}, "rank", (6,)),
    "rank of four copies": (FOUR, {"rank": {9: 1.4}}, {}, "rank", (9,)),
    "replica": (FOUR, {"rank": dict.fromkeys((4, 5, 6, 7), 1.4)}, {}, "rank", (4, 5, 6, 7)),
    "host": (replace(BASE, of_host=2), {"rank": {2: 1.5, 3: 1.5}}, {}, "host", (2, 3)),
    "host of parts of stages": (
        replace(FOUR, of_host=3),
        {"rank": {6: 1.5, 7: 1.5, 8: 1.5}},
        {},
        "host",
        (6, 7, 8),
    ),
    "stage": (BASE, {"stage": {2: 1.5}}, EVEN, "stage", (2, 6)),
    "microbatch": (BASE, {"microbatch": {3: 2.5}}, EVEN, "microbatch", ()),
    "lengths": (FOUR, {"lengths": 0.4}, EVEN, "microbatch", ()),
    "lengths of few": (
        replace(FOUR, stages=2, microbatches=4),
        {"lengths": 0.3},
        EVEN,
        "microbatch",
        (),
    ),
    "iteration": (BASE, {"iteration": {2: 1.8}}, {}, "iteration", ()),
    "link": (BASE, {"link": {(-1, 1): 30.0}}, {}, "link", ()),
    "link of a replica": (BASE, {"link": {(1, 0): 30.0}}, {}, "link", (4, 5)),
    "late": (BASE, {"late": {6: 40.0}}, {}, "launch", (6,)),
    "pause": (BASE, {"pause": {5: 30.0}}, {}, "iteration", (5,)),
    "slows": (LONG, {"slows": {3: (1.5, 3)}}, {}, "slowed", (3,)),
    "slows alone": (
        replace(LONG, stages=2, replicas=1),
        {"slows": {0: (1.8, 3)}},
        {},
        "slowed",
        (0,),
    ),
    "drift": (LONG, {"drift": {3: 0.5}}, {}, "drift", (3,)),
    "drift of two stages": (replace(LONG, stages=2), {"drift": {3: 0.4}}, {}, "drift", (3,)),
    "change": (LONG, {"iteration": dict.fromkeys(range(6, 10), 1.5)}, {}, "slowed", ()),
    "rank without a pipeline": (replace(BASE, stages=1), {"rank": {1: 1.5}}, {}, "rank", (1,)),
    "iteration alone": (
        replace(BASE, stages=1, replicas=1),
        {"iteration": {2: 1.8}},
        {},
        "iteration",
        (),
    ),
    "drift of all": (LONG, {"drift": dict.fromkeys(range(8), 0.4)}, {}, "drift", ()),
    "launch gaps": (BASE, {"gaps": {5: 0.5}}, {}, "launch-gaps", (5,)),
    "more": (replace(BASE, gaps=GAPS), {"gaps": GAPS | {5: 0.8}}, {}, "launch-gaps", (5,)),
    "between": (BASE, {"between": 30.0}, {}, "launch", ()),
    "link of late receives": (
        replace(BASE, stages=3, microbatches=9, replicas=1),
        {"link": {(-1, 1): 20.0}},
        {},
        "link",
        (),
    ),
    "host of whole stages": (
        replace(BASE, replicas=1, of_host=2),
        {"rank": {2: 1.5, 3: 1.5}},
        {},
        "host",
        (2, 3),
    ),
}
#: Part of the text of the first advice, for some of the jobs.
WORDS = {
    "rank": "rank 6 is slow",
    "rank of four copies": "x as long as on the other ranks of stage 1",
    "replica": "all 4 ranks of pipeline p1 are slow",
    "stage": "layers off stage 2",
    "microbatch": "microbatch 3 is too long",
    "iteration": "slows down all ranks in 1 iteration (2)",
    "link of a replica": "between stages 0 and 1 of pipeline p1 is slow",
    "slows": "before iteration 3 (-",
    "slows alone": "x as long. Check clocks",
    "drift": "slower and slower",
    "change": "what changed on all ranks before iteration 6",
}
SCHEDULES = ("1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v")


@pytest.mark.parametrize("messages", [True, False])
@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_fault_is_named_first_and_its_removal_saves_what_is_promised(
    number: int, messages: bool, tmp_path: Path
) -> None:
    name = list(FAULTS)[number]
    job, fault, fixed, kind, ranks = FAULTS[name]
    schedule = SCHEDULES[(number + 2 * messages) % len(SCHEDULES)]
    job = replace(job, schedule=schedule, messages=messages)
    faulty_job = simulate_job(replace(job, **fault), number)
    repaired_job = simulate_job(replace(job, **(fault if fixed else {}), **fixed), number)
    saved = 1 - repaired_job.length_ns / faulty_job.length_ns
    if name == "between":
        saved = 1 - repaired_job.period_ns / faulty_job.period_ns
    first = _advice(tmp_path, faulty_job)[0]

    assert first.kind == kind
    assert not ranks or first.ranks == ranks
    assert saved > 0.02
    assert first.saving_ratio is not None
    assert first.saving_ratio == pytest.approx(saved, abs=0.02)
    is_single = first.iterations == 1
    assert (first.error_ratio is None) == (is_single or first.place == "between-iterations")
    assert (first.error_ratio or 0) < max(0.02, first.saving_ratio)
    assert WORDS.get(name, "") in first.text


#: Two faults at once, and the cost of each fault by itself.
PAIRS: dict[str, tuple[Job, dict[str, Any], dict[str, Any], str]] = {
    "rank, link": (BASE, {"rank": {6: 1.1}}, {"link": {(-1, 0): 20.0}}, "link"),
    "stage, pause": (BASE, {"rank": {6: 1.3}}, {"pause": {6: 40.0}}, "iteration"),
    "rank, its gaps": (BASE, {"rank": {5: 1.2}}, {"gaps": {5: 0.5}}, "launch-gaps"),
    "rank, its pause": (BASE, {"rank": {6: 1.7}}, {"pause": {6: 20.0}}, "rank"),
    "iteration, change": (
        replace(LONG, stages=2),
        {"iteration": {2: 2.0}},
        {"slows": dict.fromkeys(range(4), (3.0, 6))},
        "slowed",
    ),
    "lengths, rank": (FOUR, {"rank": {9: 1.6}}, {"lengths": 0.03}, "rank"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_larger_of_two_faults_is_first(name: str, tmp_path: Path) -> None:
    job, *faults, kind = PAIRS[name]
    faulty_job = simulate_job(replace(job, **faults[0], **faults[1]), 3)
    first = _advice(tmp_path, faulty_job)[0]
    larger, other = faults if kind == "rank" else faults[::-1]
    saved = 1 - simulate_job(replace(job, **other), 3).length_ns / faulty_job.length_ns

    assert larger
    assert first.kind == kind
    assert first.saving_ratio == pytest.approx(saved, abs=0.02)


#: Two faults, of which the first hides the second: (job, both faults, places of the first advice).
HIDDEN: dict[str, tuple[Job, dict[str, Any], set[str]]] = {
    "two ranks, a jump": (
        replace(FOUR, iterations=8),
        {"rank": {5: 1.3, 13: 1.3}, "slows": {0: (1.97, 2)}},
        {"rank-5", "rank-13", "slowed-2"},
    ),
    "two ranks, a drift": (
        replace(FOUR, schedule="zb-h1"),
        {"rank": {0: 1.77, 4: 1.77}, "drift": {1: 0.91}},
        {"rank-0", "rank-4", "drift"},
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_fault_that_is_hidden_by_another_is_named_with_it(name: str, tmp_path: Path) -> None:
    job, faults, places = HIDDEN[name]
    faulty_job = simulate_job(replace(job, **faults), 5)
    saved = 1 - simulate_job(job, 5).length_ns / faulty_job.length_ns

    first = _advice(tmp_path, faulty_job)[0]

    assert set(first.place.split("+")) == places
    assert first.saving_ratio == pytest.approx(saved, abs=0.02)


def test_a_slow_replica_is_named_next_to_a_long_microbatch(tmp_path: Path) -> None:
    job = replace(FOUR, microbatches=4, iterations=8, microbatch={2: 3.0})
    faulty_job = simulate_job(replace(job, rank=dict.fromkeys((4, 5, 6, 7), 1.36)), 5)
    saved = 1 - simulate_job(job, 5).length_ns / faulty_job.length_ns

    entries = {entry.place: entry for entry in _advice(tmp_path, faulty_job)}

    assert "microbatches" in entries
    assert entries["replica-1"].saving_ratio == pytest.approx(saved, abs=0.02)


def test_a_rank_that_slows_midway_is_not_slow_from_the_start(tmp_path: Path) -> None:
    job = replace(BASE, microbatches=12, iterations=8, microbatch={7: 1.5})
    faulty_job = simulate_job(replace(job, slows={4: (1.74, 4)}), 5)

    places = [entry.place for entry in _advice(tmp_path, faulty_job)]

    assert "slowed-4" in places
    assert "rank-4" not in places


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("replicas", [1, 4])
def test_a_job_without_a_fault_is_bound_by_its_schedule(
    schedule: str, replicas: int, tmp_path: Path
) -> None:
    job = replace(BASE, schedule=schedule, replicas=replicas, noise=0.02)

    savings = [advice.saving_ratio for advice in _advice(tmp_path, simulate_job(job))]
    assert not [saving for saving in savings if saving is None or saving > 0.01]


@pytest.mark.parametrize("late_every", [1, 3])
@pytest.mark.parametrize("stage", [0, 2])
def test_a_host_that_begins_late_is_named_with_its_cost(
    stage: int, late_every: int, tmp_path: Path
) -> None:
    """Data is loaded before the first operation. If stage 0 loads late, all stages wait."""
    job = replace(QUIET, iterations=6, late={stage: 60.0}, late_every=late_every)
    faulty_job, fast_ns = simulate_job(job), simulate_job(replace(job, late={})).length_ns
    first = _advice(tmp_path, faulty_job)[0]
    # The profile does not contain the cause of the wait before the first iteration.
    seen_ns = faulty_job.lengths_ns[1:] if stage == 0 else faulty_job.lengths_ns
    length_ns = sum(seen_ns) / len(seen_ns)

    assert first.kind == "launch"
    assert first.ranks == (stage,)
    assert first.text.startswith(
        "Begin iterations earlier" if stage == 0 else "Launch operations earlier"
    )
    assert first.saving_ratio == pytest.approx(1 - fast_ns / length_ns, abs=0.002)
    assert first.iterations == len([own for own in seen_ns if own > 1.01 * fast_ns])


def test_an_iteration_that_warms_up_decides_nothing(tmp_path: Path) -> None:
    job = replace(BASE, iteration={0: 4.0}, rank={6: 1.4})
    faulty_job, repaired_job = simulate_job(job), simulate_job(replace(job, rank={}))
    report = bubbleviz.analyze(faulty_job.written(tmp_path / "operations.csv"))
    first, *further_advice = write_all_advice(report)
    length_ns, fixed_ns = (sum(own.lengths_ns[1:]) / 5 for own in (faulty_job, repaired_job))

    assert first.kind == "rank"
    assert first.saving_ratio == pytest.approx(1 - fixed_ns / length_ns, abs=0.02)
    assert not [advice for advice in further_advice if advice.kind == "iteration"]
    text = describe_first_steps(report)
    assert text is not None
    assert "Iteration 0 takes 3.9 times as long as the others" in text
    assert "--skip 1" in text


def test_an_unnamed_optimizer_is_not_a_pause(tmp_path: Path) -> None:
    """The usual time between iterations may be work that is not recorded."""
    job = simulate_job(replace(QUIET, between=40.0))
    rows = [row for row in job.rows if row["phase"] != "Optimizer"]

    assert not _advice(tmp_path, replace(job, rows=rows))


@pytest.mark.parametrize(
    ("slow", "words"),
    [((1,), "is slow in 1 iteration (2)"), ((1, 6), "ranks 1, 6 are slow in 1 iteration (2)")],
)
def test_one_or_several_ranks_may_be_slow_in_an_iteration(
    slow: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    job = Job(slows=dict.fromkeys(slow, (1.5, 2)), iterations=3, stages=4)

    text = next(entry.text for entry in _advice(tmp_path, simulate_job(job)) if words in entry.text)

    whose = "its clocks, its temperature" if len(slow) == 1 else "their clocks, their temperatures"
    assert f"Check {whose} and what else ran" in text


def test_a_slow_iteration_does_not_widen_the_saving_of_a_slow_rank(tmp_path: Path) -> None:
    healthy = Job(iterations=4, iteration={2: 1.5})
    job = replace(healthy, rank={5: 1.5})
    first = _advice(tmp_path, simulate_job(job, 3))[0]

    assert first.place == "rank-5"
    saved = 1 - simulate_job(healthy, 3).length_ns / simulate_job(job, 3).length_ns
    assert first.saving_ratio == pytest.approx(saved, abs=0.005)
    assert first.error_ratio is not None
    assert first.error_ratio < 0.02
