"""Several machines with the same host name, such as containers with a fixed name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.render.json_document import make_document
from bubbleviz.report.report import Report
from tests.planting import Planting, Truth, plant
from tests.support.edited_databases import edit_database, read_columns
from tests.support.notes import list_restriction_codes
from tests.support.report_texts import text_of

TWO = Planting(servers=2, jitter=0.05, iterations=4, transfer_ns=20_000)
SHARED = "several machines with the same host name"
CONTRADICTED = "ranks on one host contradict each other"


def plant_shared_names(planting: Planting, folder: Path) -> Truth:
    """Plant a run whose hosts share a name, have distinct processes, and lack a steady clock."""
    truth = plant(planting, folder)
    for number, path in enumerate(sorted(folder.glob("*.sqlite"))):
        statements = [
            "UPDATE TARGET_INFO_SYSTEM_ENV SET value = 'worker' WHERE name = 'Hostname'",
            "UPDATE TARGET_INFO_SESSION_START_TIME SET systemClockNs = NULL",
        ]
        for table, columns in read_columns(path).items():
            for column in {"globalTid", "globalPid"} & set(columns):
                statements.append(f"UPDATE {table} SET {column} = {column} + ({number} << 36)")
        edit_database(path, *statements)
    return truth


def list_notes(report: Report, subject: str) -> list[str]:
    return [note.reason for note in report.limitations if note.what == subject]


def get_mean(truth: Truth) -> float:
    ratios = [i.bubble_ratio["schedule"] or 0.0 for i in truth.iterations]
    return sum(ratios) / len(ratios)


@pytest.mark.parametrize("files", ["server", "rank"])
@pytest.mark.parametrize(
    ("error_ns", "communication"),
    [
        (27_900_000, True),
        (-3_000_000, True),
        (300_000, True),
        # Without receives, work may begin before its input exists, so only its end is used.
        (27_900_000, False),
        (-3_000_000, False),
    ],
)
def test_contradicting_clocks_of_one_name_are_two_machines(
    error_ns: int, files: str, communication: bool, tmp_path: Path
) -> None:
    planting = replace(TWO, clock_error_ns=(0, error_ns), files=files, communication=communication)
    truth = plant_shared_names(planting, tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(get_mean(truth), abs=1e-3)
    low, high = report.summary.bubble_interval["schedule"] or (1.0, 0.0)
    assert low <= get_mean(truth) <= high
    assert list_notes(report, CONTRADICTED) == []
    (reason,) = list_notes(report, SHARED)
    assert "are treated as 2 machines" in reason
    assert list_restriction_codes(report) == ["host-name-shared"]
    assert "several machines share a host name" in text_of(report)
    assert make_document(report)["restrictions"][0]["text"] == "several machines share a host name"
    # Each machine has a distinct name.
    assert {rank.host for rank in report.ranks} == {"worker", "worker (machine 2)"}
    assert all(report.profiles[rank.profile].host == rank.host for rank in report.ranks)
    assert f"{len(report.ranks)} ranks of 2 hosts" in text_of(report)
    (reason,) = list_notes(report, "iterations across hosts")
    assert "The least certain match is between worker and worker (machine 2)" in reason


@pytest.mark.parametrize(("tensor", "replicas"), [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("error_ns", [(0, 3_000_000), (0, -9_000_000, 5_000_000, 100_000)])
def test_machines_are_separated_if_stages_have_replicas(
    error_ns: tuple[int, ...], tensor: int, replicas: int, tmp_path: Path
) -> None:
    planting = Planting(
        stages=4,
        servers=len(error_ns),
        clock_error_ns=error_ns,
        tensor=tensor,
        replicas=replicas,
        iterations=4,
    )
    truth = plant_shared_names(planting, tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(get_mean(truth), abs=1e-3)
    assert list_restriction_codes(report) == ["host-name-shared"]
    assert not [advice for advice in report.advice if "transfers" in advice.text]


@pytest.mark.parametrize("files", ["server", "rank"])
@pytest.mark.parametrize(("tensor", "replicas"), [(1, 2), (2, 1), (2, 2)])
def test_replicas_of_one_machine_are_no_limitation(
    tensor: int, replicas: int, files: str, tmp_path: Path
) -> None:
    planting = replace(TWO, stages=4, files=files, tensor=tensor, replicas=replicas)
    truth = plant_shared_names(planting, tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert report.restrictions == ()
    assert list_notes(report, CONTRADICTED) == []
    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(get_mean(truth), abs=1e-9)


@pytest.mark.parametrize(
    "error_ns",
    [(0, 0, 0, 27_900_000), (0, 0, 27_900_000, 27_900_000), (0, 0, 0, -27_900_000)],
)
@pytest.mark.parametrize("communication", [True, False])
@pytest.mark.parametrize("iterations", [4, 8])
def test_remaining_contradictions_mark_the_ratio(
    iterations: int, communication: bool, error_ns: tuple[int, ...], tmp_path: Path
) -> None:
    """Iterations without names cannot be matched across clocks that are an iteration apart."""
    planting = Planting(
        stages=4,
        servers=4,
        iterations=iterations,
        clock_error_ns=error_ns,
        communication=communication,
        transfer_ns=0,
    )
    plant_shared_names(planting, tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert list_notes(report, CONTRADICTED) != []
    assert list_restriction_codes(report) == ["ranks-contradicted"]
    assert "uncertain: ranks on the same host contradict each other" in text_of(report)
    what_first = make_document(report)["what_to_do_first"]
    assert what_first.startswith("Give each machine its own host name")
    assert "-v coverage" in what_first
    assert not [entry for entry in make_document(report)["advice"] if "transfers" in entry["text"]]


@pytest.mark.parametrize("communication", [True, False])
def test_contradictions_on_separate_clocks_mark_the_ratio(
    communication: bool, tmp_path: Path
) -> None:
    """The first half of one profile is too early, so no clock correction fits the whole profile."""
    plant_shared_names(replace(TWO, communication=communication), tmp_path)
    path = max(tmp_path.glob("*.sqlite"))
    tables = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
    middle = "(SELECT (min(start) + max(start)) / 2 FROM CUPTI_ACTIVITY_KIND_KERNEL)"
    edit_database(path, f"CREATE TABLE middle AS SELECT {middle} AS ns")
    for table in tables:
        shift = "start = start - 4000000, end = end - 4000000"
        edit_database(path, f"UPDATE {table} SET {shift} WHERE start < (SELECT ns FROM middle)")
    report = bubbleviz.analyze(tmp_path)

    assert list_notes(report, CONTRADICTED) != []
    assert list_restriction_codes(report) == ["ranks-contradicted"]


def test_profiles_that_agree_stay_on_one_machine(tmp_path: Path) -> None:
    planting = replace(TWO, files="rank", clock_error_ns=(0, 5_000_000))
    plant_shared_names(planting, tmp_path)
    uncertainties = [p.clock_uncertainty_ns for p in bubbleviz.analyze(tmp_path).profiles]

    assert uncertainties[:2] == [0, 0]
    assert uncertainties[2] == uncertainties[3] != 0


def test_a_name_used_by_one_machine_is_no_limitation(tmp_path: Path) -> None:
    truth = plant_shared_names(TWO, tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert report.restrictions == ()
    assert list_notes(report, SHARED) == []
    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(get_mean(truth), abs=1e-9)


def test_the_user_can_make_hosts_share_one_clock(tmp_path: Path) -> None:
    plant_shared_names(replace(TWO, clock_error_ns=(0, 300_000)), tmp_path)
    report = bubbleviz.analyze(tmp_path, same_clock=[["worker"]])

    assert list_notes(report, SHARED) == []
    assert list_notes(report, CONTRADICTED) != []


def test_names_of_separated_machines_can_be_anonymized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant_shared_names(replace(TWO, clock_error_ns=(0, 3_000_000)), tmp_path)

    assert main(["analyze", str(tmp_path), "--anonymous", "-v"]) == 0
    text = capsys.readouterr().out
    assert "(machine 2)" in text
    assert "worker" not in text
