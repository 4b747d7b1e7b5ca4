"""Promises of advice are compared with the results of a later run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bubbleviz.cli.app import main
from tests.planting import Planting, plant
from tests.support.pipeline_jobs import Job, simulate_job

UNEVEN = Job(stage={3: 1.8})
SLOW = Job(rank={6: 1.5})
PAUSING = Job(between=40.0)
ALONE = Job(replicas=1, stage={3: 1.8})
LATE = Job(late={4: 60.0}, launches=False)
ONE_SCHEDULE = Job(schedule="gpipe", microbatches=4, noise=0.0)

#: (job, its changes, expected verdict, expected words) for the first advice.
CHANGES: dict[str, tuple[Job, dict[str, Any], str, str]] = {
    "stages": (UNEVEN, {"even_stages": True}, "kept", "of stage 3 takes"),
    "nothing": (UNEVEN, {}, "not followed", "of stage 3 takes"),
    "slower stages": (UNEVEN, {"stage": {3: 2.2}}, "not followed", " ms instead of "),
    "stages half": (
        UNEVEN,
        {"stage": {0: 1.1, 1: 1.1, 2: 1.1, 3: 1.5}},
        "kept in part",
        "of stage 3 takes",
    ),
    "a faster stage": (UNEVEN, {"stage": {3: 1.6}}, "not followed", "no other stage has more work"),
    "a stage no longer slow": (UNEVEN, {"stage": {}}, "not followed", "no other stage has more"),
    "stages in vain": (
        UNEVEN,
        {"even_stages": True, "transfer": 4.0},
        "not kept",
        "of stage 3 takes",
    ),
    "rank": (SLOW, {"rank": {}}, "kept", "the problem no longer stands out"),
    "rank as before": (SLOW, {"rank": {6: 1.49}}, "not followed", "the problem still costs"),
    "rank half": (SLOW, {"rank": {6: 1.25}}, "kept in part", "its usual time instead of 1.50x"),
    "slow GPU": (ALONE, {"stage": {}}, "kept", "of stage 3 takes"),
    "late start half": (
        LATE,
        {"late": {4: 20.0}},
        "kept in part",
        "late by 20.000 ms instead of 60.000 ms",
    ),
    "pauses": (PAUSING, {"between": 0.0}, "kept", "the problem no longer stands out"),
}


def _write_report(job: Job, folder: Path, name: str) -> str:
    simulate_job(job, len(name)).written(folder / f"{name}.csv")
    path = str(folder / f"{name}.json")
    assert main(["analyze", str(folder / f"{name}.csv"), "-o", path]) == 0
    return path


def _compare_runs(earlier: str, later: str, folder: Path) -> list[dict[str, Any]]:
    path = folder / "comparison.json"
    assert main(["compare", earlier, later, "-o", str(path), "--force"]) == 0
    advice: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["advice"]
    return advice


@pytest.mark.parametrize("name", CHANGES)
def test_each_piece_of_advice_says_whether_it_was_followed_and_what_it_saved(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, change, verdict, words = CHANGES[name]
    earlier = _write_report(job, tmp_path, "before")
    later = _write_report(replace(job, **change), tmp_path, "after")
    first = _compare_runs(earlier, later, tmp_path)[0]

    assert first["run"] == "after"
    assert first["verdict"] == verdict
    assert words in first["change"]
    error = "" if name == "pauses" else " ±"
    assert f"-{100 * first['promised_ratio']:.2f} %{error}" in first["text"]
    assert ("promised up to -" in first["text"]) == (name == "pauses" or first["kind"] == "stage")
    capsys.readouterr()
    followed = verdict != "not followed"
    assert main(["compare", earlier, later]) == 0
    assert ("promised" in capsys.readouterr().out) == followed
    assert main(["compare", earlier, later, "-v"]) == 0
    assert "promised" in capsys.readouterr().out
    broken = verdict in {"kept in part", "not kept"}
    assert main(["gate", later, "--promised-by", earlier]) == (3 if broken else 0)
    line = capsys.readouterr().out
    assert line.startswith("FAILED: " if broken else "ok: ")
    assert ("no advice in" in line) != followed


def test_a_bubble_due_to_the_schedule_alone_makes_no_promise_to_break(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = _write_report(Job(noise=0.0), tmp_path, "before")
    (advice,) = _compare_runs(earlier, earlier, tmp_path)
    assert advice["verdict"] == "not followed"
    assert main(["gate", earlier, "--promised-by", earlier]) == 0
    assert "What it recommends first: The schedule itself causes" in capsys.readouterr().out


@pytest.mark.parametrize("transfer", [0.05, 0.2])
def test_doubling_the_microbatches_follows_the_advice(transfer: float, tmp_path: Path) -> None:
    job = Job(noise=0.0, transfer=transfer)
    earlier = _write_report(job, tmp_path, "before")
    later = _write_report(replace(job, microbatches=2 * job.microbatches), tmp_path, "after")
    (advice,) = _compare_runs(earlier, later, tmp_path)

    assert advice["verdict"] == "kept"
    assert advice["saved_ratio"] == pytest.approx(advice["promised_ratio"], abs=0.01)
    assert advice["per_microbatch"]
    assert main(["gate", later, "--promised-by", earlier, "--baseline", earlier]) == 0


def test_a_different_schedule_follows_the_advice(tmp_path: Path) -> None:
    simulate_job(ONE_SCHEDULE).written(tmp_path / "before.csv")
    earlier, path = str(tmp_path / "before.json"), str(tmp_path / "before.csv")
    assert main(["analyze", path, "--what-if", "-o", earlier]) == 0
    # Only the advised schedule fulfills the promise.
    for name, change, verdict in (
        ("zb-h1", "zb-h1, not interleaved-zb;", "not followed"),
        ("interleaved-zb", "interleaved-zb;", "kept"),
    ):
        later = _write_report(replace(ONE_SCHEDULE, schedule=name), tmp_path, name)
        first = _compare_runs(earlier, later, tmp_path)[0]
        assert first["kind"] == "schedule"
        assert first["change"] == f"the schedule is {change} it was gpipe before"
        assert first["verdict"] == verdict


def test_overlapping_iterations_keep_the_saving_between_their_starts(
    tmp_path: Path,
) -> None:
    planting = Planting(stages=4, microbatches=8, iterations=6)
    reports = []
    for name, optimizer in (("before", 1), ("after", -1)):
        plant(
            replace(planting, late_optimizer=optimizer, late_optimizer_ns=5_000_000),
            tmp_path / name,
        )
        reports.append(str(tmp_path / f"{name}.json"))
        assert main(["analyze", str(tmp_path / name), "-o", reports[-1]]) == 0
    first = _compare_runs(reports[0], reports[1], tmp_path)[0]

    assert first["verdict"] == "kept"
    assert first["saved_ratio"] == pytest.approx(0.0537, abs=0.001)
    assert first["promised_ratio"] == pytest.approx(first["saved_ratio"], abs=0.004)


GAPS = Job(gaps=dict.fromkeys(range(8), 0.3), noise=0.002)

#: (job, its changes, expected words).
#: Either the advised change has side effects, or it was not made.
NOT_FOLLOWED: dict[str, tuple[Job, dict[str, Any], str]] = {
    "the schedule alone": (GAPS, {"schedule": "zb-h1"}, "for 23.08 % of the operation time"),
    "more gaps": (
        GAPS,
        {"gaps": dict.fromkeys(range(8), 0.4)},
        "for 28.57 % of the operation time, compared with 23.08 % before",
    ),
    "gaps within noise": (GAPS, {"gaps": dict.fromkeys(range(8), 0.29)}, "for 22.48 %"),
    "fewer gaps and another schedule": (
        GAPS,
        {"gaps": {0: 0.1}, "schedule": "zb-h1"},
        "1.23 % of the operation time, compared with 23.08 % before, but the schedule changed from "
        "1f1b to zb-h1",
    ),
    "fewer gaps and a stage": (
        GAPS,
        {"gaps": {0: 0.1}, "stage": {2: 2.0}},
        "23.08 % before, but a microbatch takes 1.54x as much compute time on stage 2",
    ),
    "rank and all of its stage": (
        SLOW,
        {"rank": {}, "stage": {2: 2.0}},
        "but a microbatch takes 1.6",
    ),
    "rank and schedule": (
        SLOW,
        {"rank": {}, "schedule": "gpipe"},
        "but the schedule changed from 1f1b to gpipe",
    ),
    "rank and microbatches": (
        SLOW,
        {"rank": {}, "microbatches": 12},
        "have 12 microbatches instead of 8",
    ),
    "rank and a stage": (
        SLOW,
        {"rank": {}, "stage": {0: 1.5}},
        "but a microbatch takes 1.50x as much compute time on stage 0",
    ),
    "rank within noise": (SLOW, {"rank": {6: 1.46}}, "the problem still costs"),
    "a faster clock": (UNEVEN, {"phase": (3.8, 3.8, 3.8)}, "of stage 3 takes"),
    "another model": (
        UNEVEN,
        {"phase": (2.0, 2.0, 2.0), "even_stages": True},
        "but a microbatch takes 0.50x as much compute time over all stages",
    ),
}


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_advice_is_followed_only_if_nothing_else_changed(name: str, tmp_path: Path) -> None:
    job, change, words = NOT_FOLLOWED[name]
    earlier = _write_report(job, tmp_path, "before")
    later = _write_report(replace(job, **change), tmp_path, "after")
    advised = _compare_runs(earlier, later, tmp_path)

    assert {entry["verdict"] for entry in advised} == {"not followed"}
    assert words in advised[0]["change"]


def test_reducing_gaps_follows_the_advice(tmp_path: Path) -> None:
    earlier = _write_report(GAPS, tmp_path, "before")
    later = _write_report(replace(GAPS, gaps={0: 0.0}), tmp_path, "after")
    first = _compare_runs(earlier, later, tmp_path)[0]

    assert (first["kind"], first["verdict"]) == ("launch-gaps", "kept")
    assert first["change"].startswith(
        "no kernel runs for 0.00 % of the operation time, compared with"
    )


#: Changes that do not follow the advice, and words of the verdict.
#: The job has gaps in operations.
NO_PROMISE: dict[str, tuple[dict[str, Any], str]] = {
    "a faster schedule": ({"schedule": "zb-h1"}, "23.08 % of the operation time, as before; "),
    "a slower schedule": ({"schedule": "gpipe", "transfer": 2.0}, ", as before; "),
    "more microbatches": ({"microbatches": 16}, "shorter per microbatch (step)"),
    "fewer microbatches": ({"microbatches": 4}, "longer per microbatch (step)"),
    "noise": ({}, ", as before; "),
    "more gaps": ({"gaps": dict.fromkeys(range(8), 0.5)}, "33.33 %"),
}


@pytest.mark.parametrize("name", NO_PROMISE)
def test_the_gate_checks_no_promise_of_advice_that_was_not_followed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = NO_PROMISE[name]
    earlier = _write_report(GAPS, tmp_path, "before")
    later = _write_report(replace(GAPS, **change), tmp_path, "after-with-other-noise")

    capsys.readouterr()
    assert main(["gate", later, "--promised-by", earlier]) == 0
    line = capsys.readouterr().out
    sentence = " ".join(line.split())
    assert sentence.startswith(
        f"ok: no advice in {earlier} was followed, so no promise is checked."
    )
    assert "Launch fewer, larger kernels inside operations" in sentence
    assert words in sentence
    # A longer iteration still fails the gate if a limit is given.
    is_longer = " longer" in sentence and "0.0" not in sentence.partition("iterations are ")[2]
    code = 3 if is_longer else 0
    assert (". To limit the length of iterations, pass --baseline" in sentence) == is_longer
    assert main(["gate", later, "--promised-by", earlier, "--baseline", earlier]) == code


def test_the_gate_passes_if_promises_are_smaller_than_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No advice is worth following, so no run can break a promise."""
    earlier = Path(_write_report(GAPS, tmp_path, "before"))
    document = json.loads(earlier.read_text(encoding="utf-8"))
    for advice in document["advice"]:
        advice["saving_ratio"] = 0.004
    earlier.write_text(json.dumps(document), encoding="utf-8")
    later = _write_report(replace(GAPS, transfer=2.0), tmp_path, "after")

    capsys.readouterr()
    assert main(["gate", later, "--promised-by", str(earlier)]) == 0
    line = " ".join(capsys.readouterr().out.split())
    assert line == (
        f"ok: {earlier} promises no saving of at least 1 % of an iteration, so there is nothing to "
        "check"
    )


def test_jobs_of_different_sizes_are_not_compared_as_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = _write_report(replace(UNEVEN, stages=8, microbatches=16), tmp_path, "before")
    later = _write_report(replace(UNEVEN, stage={}), tmp_path, "after")

    assert {entry["verdict"] for entry in _compare_runs(earlier, later, tmp_path)} == {
        "not followed"
    }
    capsys.readouterr()
    assert main(["compare", earlier, later]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "- ranks: 16 -> 8 - stages: 8 -> 4" in text
    assert "these are different jobs" in text
    for words in ("predicted from", "promised", "stage 3: "):
        assert words not in text
    assert main(["gate", later, "--promised-by", earlier]) == 1
    assert (
        "the runs have 16 and 8 ranks, so its advice cannot be checked" in capsys.readouterr().err
    )


def test_the_same_model_on_other_stages_is_still_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = _write_report(Job(noise=0.0), tmp_path, "before")
    halves = Job(noise=0.0, stages=8, phase=(2.0, 2.0, 2.0))
    later = _write_report(halves, tmp_path, "after")
    capsys.readouterr()

    assert main(["compare", earlier, later]) == 0
    assert "predicted from the earlier times: " in capsys.readouterr().out
