"""Values: frozen dataclasses that take a tenth of the time to define.

``dataclasses`` writes and compiles six functions for each class, a millisecond; at a start there
are two hundred classes. Here all share functions that walk the fields. ``dataclasses.fields``,
``replace`` and ``asdict`` work as on any dataclass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, overload

if sys.version_info >= (3, 11):
    from typing import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        """Stand in for a hint to type checkers, which does nothing at run time."""
        return lambda decorator: decorator


Class = TypeVar("Class", bound=type[Any])


@overload
def frozen(cls: Class, /) -> Class: ...


@overload
def frozen(*, eq: bool = True, shown: bool = True) -> Callable[[Class], Class]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def frozen(cls: Any = None, /, *, eq: bool = True, shown: bool = True) -> Any:
    """Make a class a frozen dataclass, as ``dataclass(frozen=True)`` does.

    Args:
        cls: the class.
        eq: whether values with equal fields are equal, and can be hashed.
        shown: whether its ``repr`` shows the fields.
    """

    def define(cls: Any) -> Any:
        defined = set(vars(cls))
        dataclass(init=False, repr=False, eq=False)(cls)
        parts = fields(cls)
        if "__init__" not in defined:
            cls.__init__ = _initialiser(parts, hasattr(cls, "__post_init__"))
        if shown and "__repr__" not in defined:
            cls.__repr__ = _repr
        if eq and "__eq__" not in defined:
            cls.__eq__, cls.__hash__ = _comparison([f.name for f in parts if f.compare])
        cls.__setattr__, cls.__delattr__ = _refuse, _refuse
        cls.__signature__ = _Signature()
        return cls

    return define if cls is None else define(cls)


def _initialiser(parts: tuple[Field[Any], ...], finished: bool) -> Callable[..., None]:
    """Return the ``__init__`` of some fields, which ends with ``__post_init__`` if there is one."""
    names = tuple(f.name for f in parts if f.init)
    defaults = {f.name: f.default for f in parts if f.default is not MISSING}
    factories = {f.name: f.default_factory for f in parts if f.default_factory is not MISSING}
    count, known = len(names), frozenset(names)

    def initialise(self: Any, /, *given: Any, **named: Any) -> None:
        state = vars(self)
        if len(given) == count and not named:
            state.update(zip(names, given, strict=True))
        else:
            bind(state, given, named)
        if finished:
            self.__post_init__()

    def bind(state: dict[str, Any], given: tuple[Any, ...], named: dict[str, Any]) -> None:
        placed = names[: len(given)]
        if len(given) > count or not named.keys() <= known or not named.keys().isdisjoint(placed):
            raise TypeError(f"expected the fields {', '.join(names)}; got {given}, {named}")
        state.update(zip(placed, given, strict=True))
        state.update(named)
        for name in names:
            if name in state:
                continue
            if name in defaults:
                state[name] = defaults[name]
            elif name in factories:
                state[name] = factories[name]()
            else:
                raise TypeError(f"the field {name} has no value")

    return initialise


def _comparison(names: list[str]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return ``__eq__`` and ``__hash__`` by some fields."""
    if not names:
        names = ["__class__"]
    parts = attrgetter(*names)

    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        # A tuple, so that a part that is the other's very own is equal to it.
        return bool((parts(self),) == (parts(other),))

    def digest(self: Any) -> int:
        return hash((parts(self),))

    return equal, digest


class _Signature:
    """The signature of a class of values, worked out for those who ask: documentation."""

    def __get__(self, instance: object, owner: Any) -> Any:
        """Return an ``inspect.Signature``."""
        import inspect

        return inspect.Signature(
            [
                inspect.Parameter(
                    f.name,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=_default(f, inspect.Parameter.empty),
                    annotation=f.type,
                )
                for f in fields(owner)
                if f.init
            ]
        )


def _default(part: Field[Any], none: object) -> object:
    """Return the default of a field, or what makes it, or what stands for none."""
    if part.default is not MISSING:
        return part.default
    return none if part.default_factory is MISSING else part.default_factory


def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse(self: Any, name: str, *_: object) -> None:
    raise FrozenInstanceError(f"{type(self).__qualname__}.{name} cannot be changed")
