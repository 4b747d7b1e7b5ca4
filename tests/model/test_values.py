"""Values are what the standard library's frozen dataclasses are."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

import pytest

from bubbleviz.model import values
from bubbleviz.model.values import replace


def _classes(make: Any) -> tuple[type, type, type]:
    """Return a class, one that derives from it, and one without comparisons."""

    @make(frozen=True)
    class Stage:
        """A stage."""

        number: int
        name: str = "first"
        ranks: list[int] = field(default_factory=list)
        seen: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
        size: int = field(init=False, repr=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "size", len(self.ranks))

        @cached_property
        def twice(self) -> int:
            """Twice its number."""
            return 2 * self.number

    @make(frozen=True, kw_only=True)
    class Chunk(Stage):
        """A part of it."""

        layer: int

    @make(frozen=True, eq=False, repr=False)
    class Column:
        """A column."""

        start_ns: int
        end_ns: int = 0

    return Stage, Chunk, Column


OURS, THEIRS = _classes(values.dataclass), _classes(dataclass)
#: Arguments of each class; some do not fit.
CALLS: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = [
    (0, (), {}),
    (0, (1,), {}),
    (0, (1, "last", [3]), {}),
    (0, (1, "last", [3], {}, 5), {}),
    (0, (1,), {"name": "last"}),
    (0, (1,), {"number": 1}),
    (0, (1,), {"size": 1}),
    (0, (1,), {"other": 1}),
    (0, (), {"name": "last"}),
    (1, (1,), {"layer": 2}),
    (1, (1,), {}),
    (1, (1, "last", [], {}, 2), {}),
    (2, (1,), {"end_ns": 3}),
    (2, (1, 2, 3), {}),
]


def _made(classes: tuple[type, type, type], call: tuple[int, Any, Any]) -> Any:
    try:
        return classes[call[0]](*call[1], **call[2])
    except TypeError:
        return TypeError


@pytest.mark.parametrize("call", CALLS)
def test_the_same_arguments_are_taken(call: Any) -> None:
    ours, theirs = _made(OURS, call), _made(THEIRS, call)
    assert (ours is TypeError) == (theirs is TypeError)
    if ours is not TypeError:
        assert asdict(ours) == asdict(theirs)
        assert [f.name for f in fields(ours)] == [f.name for f in fields(theirs)]
        if call[0] != 2:
            assert repr(ours) == repr(theirs)


def test_the_same_are_equal() -> None:
    ours, theirs = ([_made(classes, call) for call in CALLS[:12]] for classes in (OURS, THEIRS))
    for row, other in itertools.product(range(12), repeat=2):
        assert (ours[row] == ours[other]) == (theirs[row] == theirs[other]), (row, other)


def test_a_value_is_hashed_by_what_is_compared() -> None:
    stage = OURS[0](1, "last", (2,), {"a": 1})
    assert stage.twice == 2
    assert hash(stage) == hash(OURS[0](1, "last", (2,), {})) != hash(OURS[0](2, "last", (2,)))
    assert {stage: 1}[replace(stage, seen={})] == 1
    assert OURS[2](1) != OURS[2](1)


def test_a_value_cannot_change_but_in_a_copy() -> None:
    stage = OURS[0](1)
    with pytest.raises(FrozenInstanceError, match=r"Stage\.number cannot change"):
        stage.number = 2
    with pytest.raises(FrozenInstanceError, match=r"Stage\.number cannot change"):
        del stage.number
    assert replace(stage, ranks=[1, 2]).size == 2
    assert stage.size == 0
    with pytest.raises(TypeError, match="other"):
        replace(stage, other=1)


@values.dataclass(frozen=True)
class Pickled:
    """What a worker process returns."""

    number: int
    name: str = ""


def test_a_value_survives_its_process() -> None:
    assert pickle.loads(pickle.dumps(Pickled(1, "a"))) == Pickled(1, "a")


def test_the_standard_library_derives_from_it() -> None:
    """Those who add a table of their own need not know how these are made."""

    @dataclass(frozen=True)
    class Derived(Pickled):
        rank: int = 0

    @values.dataclass(frozen=True)
    class Again(Derived):
        stage: int = 0

    assert Again(1, "a", 2, 3) == Again(number=1, name="a", rank=2, stage=3)
    derived: Any = Derived(1)
    with pytest.raises(FrozenInstanceError):
        derived.rank = 2
    with pytest.raises(TypeError, match="non-frozen"):
        dataclass(type("Open", (Pickled,), {"__annotations__": {"open": "int"}}))


def test_fields_stand_in_their_order_however_they_are_given() -> None:
    for value in (Pickled(name="a", number=1), Pickled(1), Pickled(1, name="b")):
        assert [*vars(value)] == ["number", "name"]


def test_the_signature_is_that_of_the_fields() -> None:
    class Own(Pickled):
        def __init__(self, text: str) -> None:
            super().__init__(len(text), text)

    class Open(Pickled):
        pass

    assert str(inspect.signature(Pickled)) == "(number: 'int', name: 'str' = '')"
    assert inspect.signature(Open) == inspect.signature(Pickled)
    assert str(inspect.signature(OURS[1])) == str(inspect.signature(THEIRS[1])).replace(
        "<factory>", "Ellipsis"
    ).removesuffix(" -> None")
    assert str(inspect.signature(Own)) == "(text: 'str') -> 'None'"
    other: Any = Own("abc")
    other.seen = True
    assert (other.number, other.seen) == (3, True)
    with pytest.raises(FrozenInstanceError):
        other.number = 4


def test_a_class_that_is_refused_leaves_its_base_as_it_was() -> None:
    with pytest.raises(ValueError, match="mutable default"):

        @values.dataclass(frozen=True)
        class Listed(Pickled):
            rows: list[int] = []  # noqa: RUF012 -- what is refused

    @dataclass(frozen=True)
    class Derived(Pickled):
        rank: int = 0

    assert Derived(1, rank=2).rank == 2


def test_who_defines_equality_has_the_hash_of_fields() -> None:
    @values.dataclass(frozen=True)
    class Name:  # noqa: PLW1641 -- it is given one
        text: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Name) and self.text.lower() == other.text.lower()

    assert Name("A") == Name("a")
    assert {Name("A"): 1}[Name("A")] == 1


def test_what_changes_or_has_an_order_is_left_to_the_standard_library() -> None:
    @values.dataclass
    class Counter:
        count: int = 0

    @values.dataclass(frozen=True, order=True)
    class Place:
        row: int

    @values.dataclass(frozen=True, slots=True)
    class Slotted:
        row: int

    assert not hasattr(Slotted(1), "__dict__")
    counter = Counter()
    counter.count += 1
    assert counter == Counter(1)
    assert Place(1) < Place(2)
    assert dataclasses.is_dataclass(Place)


def test_a_copy_is_checked_as_a_new_value_is() -> None:
    @values.dataclass(frozen=True)
    class Checked:
        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011  # the check's own
        replace(Checked(1), number=-1)
