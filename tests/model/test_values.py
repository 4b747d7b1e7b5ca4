"""Values behave as frozen dataclasses do."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property

import pytest

from bubbleviz.model.values import frozen


@frozen
class Plain:
    """With defaults of both kinds."""

    first: int
    second: str = "two"
    third: list[int] = field(default_factory=list)

    @cached_property
    def twice(self) -> int:
        """Two times the first."""
        return 2 * self.first


@frozen
class More(Plain):
    """With one part more, which is worked out."""

    fourth: int = 4
    total: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Work out the total."""
        object.__setattr__(self, "total", self.first + self.fourth)


@frozen(eq=False, shown=False)
class Same:
    """Equal to nothing but itself."""

    part: int


@frozen
class Empty:
    """Without parts."""


@dataclass(frozen=True)
class Reference:
    """What ``Plain`` is to be like."""

    first: int
    second: str = "two"
    third: tuple[int, ...] = ()


def test_parts() -> None:
    assert Plain(1) == Plain(1, "two", []) == Plain(first=1, third=[])
    assert [f.name for f in fields(More)] == ["first", "second", "third", "fourth", "total"]
    assert More(1, fourth=2).total == 3
    assert asdict(More(1)) == {"first": 1, "second": "two", "third": [], "fourth": 4, "total": 5}
    assert repr(More(1)) == "More(first=1, second='two', third=[], fourth=4)"
    assert Plain(1).third is not Plain(1).third
    assert Plain(3).twice == 6


def test_documentation_shows_the_parts() -> None:
    assert list(inspect.signature(More).parameters) == ["first", "second", "third", "fourth"]
    assert inspect.signature(Plain).parameters["second"].default == "two"


def test_equality_and_hashes() -> None:
    assert Plain(1) != Plain(2)
    assert Plain(1) != More(1)
    assert Plain(1).__eq__(1) is NotImplemented
    assert Same(1) != Same(1)
    assert "object at" in repr(Same(1))
    assert {Empty(): 1}[Empty()] == 1
    assert hash(Reference(1)) == hash(Reference(1))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Plain(1))


def test_nothing_can_be_changed() -> None:
    plain = Plain(1)
    with pytest.raises(FrozenInstanceError):
        plain.first = 2  # type: ignore[misc]  # which is tested
    with pytest.raises(FrozenInstanceError):
        del plain.first
    assert replace(plain, first=2) == Plain(2)
    assert replace(More(1), first=2).total == 6


def test_it_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(More(1, "x", [2]))) == More(1, "x", [2])


@pytest.mark.parametrize(
    ("given", "named"), [((), {}), ((1, 2, 3, 4), {}), ((1,), {"first": 1}), ((1,), {"no": 1})]
)
def test_wrong_parts_are_refused(given: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="field"):
        Plain(*given, **named)  # type: ignore[arg-type]  # which is tested
