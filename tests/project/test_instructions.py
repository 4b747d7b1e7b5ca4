"""No stage of an analysis takes more instructions than its budget, which is raised knowingly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts.counting import __main__ as command
from scripts.counting.budget import Budget, read_budget, verdict
from scripts.counting.counts import CountingError, count, environment

BUDGET = Budget(("here",), {"read": 100_000_000, "name": 2_000_000})


@pytest.mark.valgrind
def test_every_stage_is_within_its_budget() -> None:
    """Renew the budget with scripts/instructions --renew, and say why in the commit."""
    budget, here = read_budget(), environment()

    complaints = budget.complaints(count(), here)

    assert not complaints, verdict(complaints, same=here == budget.environment)


@pytest.mark.parametrize(
    ("counts", "here", "complaints"),
    [
        *(({"read": read, "name": 2_900_000}, "here", []) for read in (75_000_000, 105_000_000)),
        (
            {"read": 150_000_000, "name": 2_000_000},
            "here",
            ["read: 150.0 million instructions, 50.0 % more than 100.0"],
        ),
        (
            {"read": 60_000_000, "name": 2_000_000},
            "here",
            ["read: 60.0 million instructions, 40.0 % less than 100.0; hold what was won"],
        ),
        (
            {"read": 100_000_000, "link": 1},
            "here",
            ["link: has no budget", "name: was not counted"],
        ),
        # Other versions are given more.
        *(({"read": read, "name": 2_000_000}, "elsewhere", []) for read in (129_000_000, 1)),
        (
            {"read": 131_000_000, "name": 2_000_000},
            "elsewhere",
            ["read: 131.0 million instructions, 31.0 % more than 100.0"],
        ),
    ],
)
def test_complaints(counts: dict[str, int], here: str, complaints: list[str]) -> None:
    assert BUDGET.complaints(counts, (here,)) == complaints


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return what the command will count, in place of valgrind, with a budget of its own."""
    counts = {"read": 100_000_000}
    monkeypatch.setattr(command, "obstacle", lambda: "")
    monkeypatch.setattr(command, "count", lambda: counts)
    monkeypatch.setattr(command, "FILE", tmp_path / "budget.toml")
    monkeypatch.setattr(command, "read_budget", lambda: read_budget(tmp_path / "budget.toml"))
    return counts


def test_the_budget_is_renewed_by_one_command(
    counted: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--renew"]) == 0
    assert command.main([]) == 0
    counted["read"] = 150_000_000
    capsys.readouterr()
    assert command.main([]) == 1
    assert "read: 150.0 million instructions, 50.0 % more than 100.0" in capsys.readouterr().err
    assert command.main(["--renew"]) == 0
    assert command.main([]) == 0
    assert " 150.0 M  read " in capsys.readouterr().out


@pytest.mark.parametrize("fails", ["obstacle", "count"])
def test_where_nothing_is_counted_nothing_is_written(
    fails: str,
    counted: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def fail() -> Mapping[str, int]:
        raise CountingError("no valgrind")

    monkeypatch.setattr(command, fails, (lambda: "no valgrind") if fails == "obstacle" else fail)

    assert counted
    assert command.main(["--renew"]) == 1
    assert capsys.readouterr().err == "instructions: no valgrind\n"
    assert list(tmp_path.iterdir()) == []
