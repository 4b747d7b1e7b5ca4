"""What names mean is worked out once for all profiles of a run."""

from __future__ import annotations

import pickle

import pytest

from bubbleviz.conventions import range_names
from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.range_names import match_of, named_by, understand
from bubbleviz.conventions.recognition import scores_of


def _fresh(name: str) -> Convention:
    """Return a built-in convention that has met no name yet."""
    again: Convention = pickle.loads(pickle.dumps(built_in()[name]))
    return again


def _examples() -> list[str]:
    return [text for convention in built_in().values() for text in convention.examples]


def test_no_name_is_known_at_first() -> None:
    assert named_by(_fresh("zero-bubble"), []) == []
    assert len(understand([], _fresh("zero-bubble"))) == 0


def test_a_known_name_is_not_matched_again() -> None:
    convention = _fresh("zero-bubble")
    assert match_of("F3.0.0", convention) is match_of("F3.0.0", convention)


@pytest.mark.parametrize("name", sorted(built_in()))
def test_names_mean_the_same_when_they_are_met_again(name: str) -> None:
    convention, texts = _fresh(name), _examples()
    first = understand(texts, convention)
    again = understand(texts, convention)
    for column in again.column_names():
        assert getattr(again, column).tolist() == getattr(first, column).tolist()
    assert understand(texts[::-1], _fresh(name)).phase.tolist() == first.phase.tolist()[::-1]


@pytest.mark.parametrize("name", sorted(built_in()))
def test_prefilters_leave_out_only_what_no_pattern_takes(name: str) -> None:
    """Scores are the same whether names pass the prefilters first or not."""
    counts = dict.fromkeys(_examples(), 1)
    fresh, met = _fresh(name), _fresh(name)
    understand(list(counts), met)
    assert scores_of(counts, [fresh]) == scores_of(counts, [met])


def test_what_is_known_stays_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_names, "_MOST_KEPT", 10)
    convention = _fresh("zero-bubble")
    texts = [f"F{microbatch}.0.0" for microbatch in range(35)]
    assert named_by(convention, texts) == texts
    assert understand(texts, convention).microbatch.tolist() == list(range(35))
    assert len(convention.known) <= 10
    match_of("F1.0.0" + "x" * 1000, convention)
    assert max(map(len, convention.known)) < 1000


def test_what_is_known_does_not_travel_to_other_processes() -> None:
    convention = _fresh("zero-bubble")
    before = len(pickle.dumps(convention))
    understand([f"F{microbatch}.0.0" for microbatch in range(1000)], convention)
    assert len(pickle.dumps(convention)) == before
