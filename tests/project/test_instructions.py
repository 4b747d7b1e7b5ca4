"""No stage of an analysis exceeds its instruction budget by more than 15 %."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts.counting import __main__ as command
from scripts.counting.budget import Budget, format_failure, read_budget
from scripts.counting.counts import CountingError, count, environment

BUDGET = Budget(("here",), {"read": 100_000_000, "name": 2_000_000})


@pytest.mark.valgrind
def test_no_stage_became_more_expensive() -> None:
    """Renew the budget with scripts/instructions --renew, and give the reason in the commit."""
    budget = read_budget()
    counts = count()

    regressions = budget.regressions(counts, environment())

    assert not regressions, f"{format_failure(regressions)}\n{budget.table(counts)}"


@pytest.mark.parametrize(
    ("counts", "environment_name", "regressions"),
    [
        *(({"read": read, "name": 2_900_000}, "here", []) for read in (1, 114_900_000)),
        (
            {"read": 115_100_000, "name": 3_100_000},
            "here",
            [
                "read: 115.1 million instructions, 15.1 % more than 100.0",
                "name: 3.1 million instructions, 55.0 % more than 2.0",
            ],
        ),
        # There is a new stage, and a stage that is no longer counted.
        ({"read": 100_000_000, "link": 900_000_000}, "here", []),
        ({"read": 150_000_000, "name": 9_000_000}, "elsewhere", []),
    ],
)
def test_stages_that_take_15_percent_more_fail(
    counts: dict[str, int], environment_name: str, regressions: list[str]
) -> None:
    assert BUDGET.regressions(counts, (environment_name,)) == regressions


@pytest.fixture
def instruction_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Replace valgrind and the budget file. Return the counts that the command will read."""
    counts = {"read": 100_000_000}
    monkeypatch.setattr(command, "obstacle", lambda: "")
    monkeypatch.setattr(command, "count", lambda: counts)
    monkeypatch.setattr(command, "FILE", tmp_path / "budget.toml")
    monkeypatch.setattr(command, "read_budget", lambda: read_budget(tmp_path / "budget.toml"))
    return counts


def test_the_budget_is_renewed_by_one_command(
    instruction_counts: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--renew"]) == 0
    assert command.main([]) == 0
    instruction_counts["read"] = 150_000_000
    capsys.readouterr()
    assert command.main([]) == 1
    assert "read: 150.0 million instructions, 50.0 % more than 100.0" in capsys.readouterr().err
    assert command.main(["--renew"]) == 0
    assert command.main([]) == 0
    assert " 150.0 M  read " in capsys.readouterr().out


@pytest.mark.parametrize("fails", ["obstacle", "count"])
def test_nothing_is_written_if_counting_fails(
    fails: str,
    instruction_counts: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def fail() -> Mapping[str, int]:
        raise CountingError("no valgrind")

    monkeypatch.setattr(command, fails, (lambda: "no valgrind") if fails == "obstacle" else fail)

    assert instruction_counts
    assert command.main(["--renew"]) == 1
    assert capsys.readouterr().err == "instructions: no valgrind\n"
    assert list(tmp_path.iterdir()) == []
