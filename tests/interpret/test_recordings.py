"""Recordings: the same for ranks alone or side by side, and in whatever steps they are gathered."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bubbleviz.interpret import per_rank
from bubbleviz.interpret.fleet.run_recordings import Fleet
from bubbleviz.interpret.record import ReadOptions, record
from bubbleviz.interpret.recording import TABLES, Recordings, gathered
from bubbleviz.model.columns import Table
from tests.planting import Planting, plant

# Gathered recordings: the same in whatever steps they are gathered, here or as they travel.


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Recordings]:
    folder = tmp_path_factory.mktemp("gathered")
    plant(Planting(stages=4, servers=4, replicas=2, iterations=2, microbatches=4), folder)
    files = Fleet(1).find([str(folder)])
    return [record(file.path, ReadOptions())[0] for file in files]


def _same(one: Recordings, other: Recordings) -> None:
    sources = [[r.source for r in each.recordings] for each in (one, other)]
    assert sources[0] == sources[1]
    assert one.busy_throughout == other.busy_throughout
    np.testing.assert_array_equal(one.rows, other.rows)
    np.testing.assert_array_equal(one.names, other.names)
    for name in TABLES:
        table, same = getattr(one, name), getattr(other, name)
        for column in table.column_names():
            np.testing.assert_array_equal(getattr(table, column), getattr(same, column))
        for shared in vars(table).keys() - set(table.column_names()):
            assert getattr(table, shared) == getattr(same, shared)


@pytest.mark.parametrize("cuts", [(1,), (2,), (1, 2, 3), (0, 1)])
def test_recordings_are_gathered_in_any_steps(
    cuts: tuple[int, ...], recordings: list[Recordings]
) -> None:
    whole = gathered(list(recordings))
    bounds = [*cuts, len(recordings)]
    parts = [recordings[: bounds[0]]]
    parts += [recordings[low:high] for low, high in pairwise(bounds)]
    steps = [gathered(part) for part in parts if part]
    travelled = pickle.loads(pickle.dumps(steps, 5))
    _same(gathered(travelled), whole)
    rest = gathered(recordings[bounds[0] :])
    _same(gathered([*recordings[: bounds[0]], rest]), whole)


def test_one_recording_is_gathered_as_it_is(recordings: list[Recordings]) -> None:
    (only,) = recordings[:1]
    assert gathered([only]) is only
    assert only.rows.tolist() == [[len(getattr(only, name)) for name in TABLES]]


def test_what_is_gathered_is_let_go(recordings: list[Recordings]) -> None:
    for count in (1, len(recordings)):
        parts = recordings[:count]
        gathered(parts)
        assert parts == []


# Ranks side by side: what they did is the same as if each were worked out alone.


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
    """Return what a value holds, tables as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Table):
        return {name: columns(part) for name, part in vars(value).items()}
    return value


@pytest.mark.parametrize("name", EVERYTHING)
def test_ranks_are_recorded_as_if_alone(
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
