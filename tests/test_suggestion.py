"""The draft of a naming convention."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.conventions import load_convention, understand
from bubbleviz.phases import Phase
from bubbleviz.suggestion import suggest

FIXTURE = Path(__file__).parents[1] / "fixtures" / "1f1b" / "node0.sqlite"


def test_no_names_give_no_draft() -> None:
    assert suggest({}) is None
    assert suggest({"aten::mm, op_id = 3": 5, "Setup": 2}) is None


@pytest.mark.parametrize(
    ("name", "phase", "microbatch"),
    [
        ("fwd mb=3", Phase.F, 3),
        ("stage 2 forward microbatch 7", Phase.F, 7),
        ("bwd[12]", Phase.BW, 12),
        ("dgrad 4", Phase.B, 4),
        ("it's a wgrad 4?*", Phase.W, 4),
        ("optimizer step", Phase.OPTIMIZER, -1),
        ("recv_forward_5", Phase.RECV_F, 5),
    ],
)
def test_a_draft_understands_the_names_it_was_made_of(
    name: str, phase: Phase, microbatch: int, tmp_path: Path
) -> None:
    draft = suggest({name: 3})
    assert draft is not None
    file = tmp_path / "mine.toml"
    file.write_text(draft, encoding="utf-8")

    names = understand([name], load_convention(file))

    assert names.phase.tolist() == [phase]
    assert names.microbatch.tolist() == [microbatch]


def test_a_draft_analyses_a_run_named_in_no_known_way(tmp_path: Path) -> None:
    run = tmp_path / "run.sqlite"
    run.write_bytes(FIXTURE.read_bytes())
    with sqlite3.connect(run) as database:
        database.execute(
            "UPDATE NVTX_EVENTS SET text = REPLACE(REPLACE(text, 'F', 'fwd pass '), 'B', 'bwd ') "
            "WHERE text GLOB '[FB][0-9]*'"
        )
    database.close()
    draft = bubbleviz.inspect(run).suggestion
    assert draft is not None
    file = tmp_path / "mine.toml"
    file.write_text(draft, encoding="utf-8")

    report = bubbleviz.analyze([run], convention=[str(file)])

    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(3 / 11)
