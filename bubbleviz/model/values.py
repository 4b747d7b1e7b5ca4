"""Values: frozen dataclasses whose classes are made without generated code.

For each class the standard library writes and compiles up to six functions, which took half of the
time in which the package loads. Classes that are made here share theirs, and are dataclasses in
all else: what else there is for dataclasses takes them, and is found here, too.
"""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, astuple, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

__all__ = ["asdict", "astuple", "dataclass", "field", "fields", "is_dataclass", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Make a class a dataclass, with the options of the standard library."""
        if not options.get("frozen") or options.get("order"):
            return dataclasses.dataclass(cls, **options)

        def made(cls: type) -> type:
            # There, frozen classes derive from frozen ones alone, and have code of their own.
            bases = [vars(base).get("__dataclass_params__") for base in cls.__mro__[1:]]
            frozen = [base for base in bases if base and base.frozen]
            for base in frozen:
                base.frozen = False
            without = dict.fromkeys(("frozen", "init", "repr", "eq"), False)
            dataclasses.dataclass(cls, **options | without)
            cls.__wanted__ = frozenset(part.name for part in fields(cls) if part.init)
            for made_frozen in (*frozen, cls.__dataclass_params__):
                made_frozen.frozen = True
            methods = {"__setattr__": _refuse, "__delattr__": _refuse}
            methods["__init__"] = _checked_init if hasattr(cls, "__post_init__") else _init
            if options.get("eq", True):
                methods |= {"__eq__": _equal, "__hash__": _hash}
            if options.get("repr", True):
                methods["__repr__"] = _repr
            for name in methods.keys() - vars(cls).keys():
                setattr(cls, name, methods[name])
            return cls

        return made


def _init(self: Any, /, *values: Any, **named: Any) -> None:
    """Set the fields, one by one, so that the values of a class share their names."""
    put, names = object.__setattr__, self.__match_args__
    if not named and len(values) == len(names) == len(self.__wanted__):
        for name, value in zip(names, values, strict=True):
            put(self, name, value)
        return
    given = named if not values and named.keys() == self.__wanted__ else _given(self, values, named)
    for name, value in given.items():
        put(self, name, value)


def _given(made: Any, values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return the value of each field, defaults among them.

    Raises:
        TypeError: one lacks, or is given twice, or there is none of a name.
    """
    given = dict(zip(made.__match_args__, values, strict=False), **named)
    fits = len(given) == len(values) + len(named) and given.keys() <= made.__wanted__
    for name in made.__wanted__ - given.keys():
        part = made.__dataclass_fields__[name]
        if part.default is not dataclasses.MISSING:
            given[name] = part.default
        elif part.default_factory is not dataclasses.MISSING:
            given[name] = part.default_factory()
        else:
            fits = False
    if not fits:
        raise TypeError(
            f"{type(made).__qualname__}() takes {', '.join(made.__dataclass_fields__)}; it was "
            f"given {len(values)} values, and {', '.join(named) or 'none'} by name"
        )
    return given


def _checked_init(self: Any, /, *values: Any, **named: Any) -> None:
    """Set the fields, and check them."""
    _init(self, *values, **named)
    self.__post_init__()


def _compared(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, part.name) for part in fields(value) if part.compare)


def _equal(self: Any, other: object) -> bool:
    """Tell whether both are of one class, and equal field by field."""
    return _compared(self) == _compared(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _repr(self: Any) -> str:
    shown = (f"{part.name}={getattr(self, part.name)!r}" for part in fields(self) if part.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, *_: object) -> None:
    raise dataclasses.FrozenInstanceError(f"{type(self).__qualname__}.{name} cannot change")
