"""Recordings of ranks give the same result alone and together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bubbleviz.interpret import per_rank
from bubbleviz.interpret.record import ReadOptions, record
from bubbleviz.model.columns import Table
from tests.planting import Planting, plant

EVERYTHING = {
    "dry": Planting(
        replicas=2, autograd="named", stray="busy", drop_calls_every=5, overhead=True, copies=True
    ),
    "receives": Planting(
        replicas=2, nested_receive_ns=20_000, transfer_ns=20_000, barrier=True, stray="idle"
    ),
    "collectives": Planting(
        replicas=2, reduce_ns=50_000, reduce_pieces=3, late_reducer=3, late_reduce_ns=100_000
    ),
    "late": Planting(replicas=2, late_stage=2, late_ns=300_000, pause_device=1, pause_dry=True),
    "cut": Planting(replicas=2, cut_ns=9_000_000, correlation="disjoint", devices="zero"),
}


def columns(value: object) -> object:
    """Return a value as plain Python objects, with arrays and tables as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Table):
        return {name: columns(part) for name, part in vars(value).items()}
    return value


@pytest.mark.parametrize("name", EVERYTHING)
def test_ranks_are_the_same_when_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plant(EVERYTHING[name], tmp_path)
    path = str(tmp_path / "node0.sqlite")
    beside = record(path, ReadOptions())[0]
    monkeypatch.setattr(per_rank, "_TOGETHER", 1)
    alone = record(path, ReadOptions())[0]

    assert len(beside.recordings[0].ranks) == 8
    for part, value in vars(alone).items():
        assert columns(getattr(beside, part)) == columns(value), part
