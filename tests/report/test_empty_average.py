"""Reports of which no iteration is averaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planting import Planting, plant
from tests.support.command_line import CommandLine


@pytest.mark.parametrize("run", [Planting(), Planting(stages=1), Planting(stray="idle")], ids=str)
def test_nothing_is_advised_from_an_empty_average(
    run: Planting, tmp_path: Path, cli: CommandLine
) -> None:
    plant(run, tmp_path)
    shown = " ".join(
        cli.printed(
            "analyze", str(tmp_path), "--skip", "99", "--json", str(tmp_path / "r.json")
        ).split()
    )
    assert "What to do first: nothing can be advised, since no iteration is averaged" in shown
    assert "any kernel ran for" not in shown
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["what_to_do_first"] is None
