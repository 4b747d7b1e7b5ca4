"""Reports of which no iteration is averaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from tests.planting import Planting, plant


@pytest.mark.parametrize("run", [Planting(), Planting(stages=1), Planting(stray="idle")], ids=str)
def test_nothing_is_advised_from_an_empty_average(
    run: Planting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(run, tmp_path)
    assert main(["analyze", str(tmp_path), "--skip", "99", "--json", str(tmp_path / "r.json")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "What to do first: nothing can be advised, since no iteration is averaged" in shown
    assert "any kernel ran for" not in shown
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["what_to_do_first"] is None
