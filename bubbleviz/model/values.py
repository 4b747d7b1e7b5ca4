"""Values: frozen dataclasses whose classes are made without generated code.

For each class the standard library writes and compiles up to six functions, which took half of the
time in which the package loads. Classes that are made here share theirs, and are dataclasses in
all else: what else there is for dataclasses takes them, and is found here, too.
"""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, astuple, field, fields, is_dataclass
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
    from inspect import Signature

__all__ = ["asdict", "astuple", "dataclass", "field", "fields", "is_dataclass", "replace"]

#: What is made here; classes with other options are left to the standard library.
_OPTIONS = {"frozen", "eq", "repr", "kw_only"}
_MAKING = RLock()


def _dataclass(cls: type | None = None, /, **options: bool) -> Any:
    """Make a class a dataclass. A frozen one knows no ``InitVar``, nor factories outside init."""
    if not options.get("frozen") or options.keys() - _OPTIONS:
        return dataclasses.dataclass(cls, **options)

    def made(cls: type) -> type:
        params = [vars(base).get("__dataclass_params__") for base in cls.__mro__[1:]]
        bases = [base for base in params if base is not None]
        if not all(base.frozen for base in bases):
            return dataclasses.dataclass(**options)(cls)  # refuses it
        # There, frozen classes derive from frozen ones alone, and have code of their own.
        with _MAKING:
            try:
                for base in bases:
                    base.frozen = False
                without = dict.fromkeys(("frozen", "init", "repr", "eq"), False)
                dataclasses.dataclass(**options | without)(cls)
            finally:
                for base in bases:
                    base.frozen = True
        known: Any = cls
        known.__dataclass_params__.frozen = True
        known.__wanted__ = dict.fromkeys(part.name for part in fields(known) if part.init)
        compared = [part.name for part in fields(known) if part.compare]
        known.__compared__ = attrgetter(*compared) if compared else lambda _: ()
        methods: dict[str, Any] = {"__setattr__": _set, "__delattr__": _delete}
        methods |= {"__init__": _checked_init if hasattr(cls, "__post_init__") else _init}
        methods |= {"__signature__": _Signature()}
        if options.get("eq", True):
            methods |= {"__eq__": _equal, "__hash__": _hash}
        if options.get("repr", True):
            methods |= {"__repr__": _repr}
        for name, method in methods.items():
            # Who defines equality alone is made to have no hash.
            if vars(cls).get(name) is None:
                setattr(cls, name, method)
        return cls

    return made if cls is None else made(cls)


def _replace(value: Any, /, **changes: Any) -> Any:
    """Return a value with some fields exchanged, faster than the standard library does."""
    cls: Any = type(value)
    wanted = vars(cls).get("__wanted__")
    if wanted is None or cls.__init__ is not _init or changes.keys() - wanted.keys():
        return dataclasses.replace(value, **changes)
    made = object.__new__(cls)
    for name in wanted:
        object.__setattr__(made, name, changes[name] if name in changes else getattr(value, name))
    return made


if not TYPE_CHECKING:
    dataclass, replace = _dataclass, _replace


def _init(self: Any, /, *values: Any, **named: Any) -> None:
    """Set the fields one by one and in their order, so that values of a class share the names."""
    put, wanted = object.__setattr__, self.__wanted__
    if not named and len(values) == len(self.__match_args__) == len(wanted):
        for name, value in zip(wanted, values, strict=True):
            put(self, name, value)
        return
    whole = not values and named.keys() == wanted.keys()
    given = named if whole else _given(self, values, named)
    for name in wanted:
        put(self, name, given[name])


def _given(made: Any, values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return the value of each field, defaults among them.

    Raises:
        TypeError: one lacks, or is given twice, or there is none of a name.
    """
    given, wanted = dict(zip(made.__match_args__, values, strict=False), **named), made.__wanted__
    if len(given) < len(values) + len(named) or given.keys() - wanted.keys():
        by_name = f", and {', '.join(named)} by name" if named else ""
        raise TypeError(f"{_takes(made)}; it was given {len(values)} by place{by_name}")
    lacking = []
    for name in wanted.keys() - given.keys():
        part = made.__dataclass_fields__[name]
        if part.default is not dataclasses.MISSING:
            given[name] = part.default
        elif part.default_factory is not dataclasses.MISSING:
            given[name] = part.default_factory()
        else:
            lacking.append(name)
    if lacking:
        raise TypeError(f"{_takes(made)}; it was not given {', '.join(sorted(lacking))}")
    return given


def _takes(made: Any) -> str:
    return f"{type(made).__qualname__}() takes {', '.join(made.__wanted__) or 'nothing'}"


def _checked_init(self: Any, /, *values: Any, **named: Any) -> None:
    """Set the fields, and check them."""
    _init(self, *values, **named)
    self.__post_init__()


class _Signature:
    """Gives the signature of a class, which ``help`` and editors show, where it is asked for."""

    def __get__(self, _: object, cls: Any) -> Signature:
        from inspect import Parameter, Signature

        if cls.__init__ not in (_init, _checked_init):
            raise AttributeError("__signature__")  # it has one of its own
        parameters = []
        for part in map(cls.__dataclass_fields__.__getitem__, cls.__wanted__):
            kind = Parameter.KEYWORD_ONLY if part.kw_only else Parameter.POSITIONAL_OR_KEYWORD
            made = part.default_factory is not dataclasses.MISSING
            default = ... if made else part.default
            default = Parameter.empty if default is dataclasses.MISSING else default
            parameters.append(Parameter(part.name, kind, default=default, annotation=part.type))
        return Signature(sorted(parameters, key=lambda parameter: parameter.kind))


def _equal(self: Any, other: Any) -> Any:
    """Tell whether both are of one class, and equal field by field."""
    if type(self) is not type(other):
        return NotImplemented
    return self.__compared__(self) == self.__compared__(other)


def _hash(self: Any) -> int:
    return hash(self.__compared__(self))


def _repr(self: Any) -> str:
    shown = (f"{part.name}={getattr(self, part.name)!r}" for part in fields(self) if part.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _set(self: Any, name: str, value: object) -> None:
    _refuse(self, name)
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    _refuse(self, name)
    object.__delattr__(self, name)


def _refuse(value: Any, name: str) -> None:
    """Refuse to change a field; a class that derives from it may have other attributes."""
    if "__dataclass_fields__" in vars(type(value)) or name in value.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"{type(value).__qualname__}.{name} cannot change")
