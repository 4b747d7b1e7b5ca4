"""Check the argument types of public functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.texts import name_python_arguments

#: Accepted types for each annotation. NumPy's number types are not subclasses of int, float or
#: bool.
_ACCEPTED_TYPES: Mapping[type, Any] = {int: Integral, float: Real, bool: (bool, np.bool_)}
_SIZES = re.compile(r"[a-z]+=\d{1,6}(?:,[a-z]+=\d{1,6}){0,4}")
_P = ParamSpec("_P")
_T = TypeVar("_T")


def check_argument_types(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a wrapper that checks the argument types and then calls the function.

    If the function raises a usage error, command-line options in the message are replaced with
    names of Python arguments, as described at
    :func:`~bubbleviz.model.texts.name_python_arguments`.

    Raises:
        UsageError: The wrapper was called with an argument of the wrong type, or the function
            raised the error.
    """

    @wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        refuse_wrong_types(function, signature(function).bind(*args, **kwargs).arguments)
        with name_python_arguments():
            return function(*args, **kwargs)

    return wrapper


def explain_keywords(**hints: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Return a decorator for functions whose users may guess keyword arguments that do not exist.

    The decorated function raises a usage error for these arguments.

    Args:
        hints: What to do instead, keyed by the name of the argument that does not exist.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @wraps(function)
        def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            for name in sorted(hints.keys() & kwargs.keys()):
                raise UsageError(f"{function.__name__} has no argument {name}; {hints[name]}")
            return function(*args, **kwargs)

        return wrapper

    return decorate


def refuse_wrong_types(function: Callable[..., object], arguments: Mapping[str, object]) -> None:
    """Check the arguments of a function or class against its type annotations.

    Each item of ``*args`` is checked, but ``**kwargs`` are not checked. If the argument is a string
    and the parameter expects a dataclass, the message recommends the dataclass.

    Args:
        function: Function or class with annotations.
        arguments: Bound arguments, keyed by parameter name.

    Raises:
        UsageError: An argument has the wrong type.
    """
    hints, parameters = get_type_hints(function), signature(function).parameters
    for name, value in arguments.items():
        kind = parameters[name].kind
        values: Any = value if kind is parameters[name].VAR_POSITIONAL else (value,)
        refused = [each for each in values if not _has_type(each, hints[name])]
        if kind is parameters[name].VAR_KEYWORD or not refused:
            continue
        value = refused[0]  # noqa: PLW2901 - one of several arguments may have the wrong type
        hint = f"see help(bubbleviz.{function.__name__})"
        # A string such as "pp=4,dp=2" looks like a command-line option, so suggest the class.
        type_arguments = get_args(hints[name])
        classes: list[Any] = [c for c in type_arguments if isinstance(c, type) and is_dataclass(c)]
        if isinstance(value, str) and len(classes) == 1:
            hint = f"see help(bubbleviz.{classes[0].__name__})"
            sizes = {size.partition("=")[0] for size in value.split(",")}
            if _SIZES.fullmatch(value) and sizes <= signature(classes[0]).parameters.keys():
                hint = f"pass bubbleviz.{classes[0].__name__}({value.replace(',', ', ')})"
        # For example, a list of schedules where one schedule is simulated at a time.
        if isinstance(value, (list, tuple)) and value and _has_type(value[0], hints[name]):
            hint = f"pass one value, such as {name}={value[0]!r:.60}, and make one call per value"
        raise UsageError(
            f"{name}={value!r:.60}: must be of type {parameters[name].annotation}; {hint}"
        )


def _has_type(value: object, hint: Any) -> bool:
    """Return whether a value has the type that an annotation requires.

    NumPy numbers are accepted wherever Python numbers are, and 0 and 1 are accepted for bool. The
    items of sequences are checked. The items of iterators are not checked, because iterators can be
    read only once. A string is not accepted as a sequence. Protocols and annotations that are not
    classes accept any value.
    """
    origin, type_arguments = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return any(_has_type(value, each) for each in type_arguments)
    if origin is Sequence or (origin is tuple and type_arguments[1:] == (...,)):
        # An array without dimensions is a single value.
        is_scalar = isinstance(value, str) or getattr(value, "ndim", 1) == 0
        if is_scalar or not isinstance(value, Iterable):
            return False
        return isinstance(value, Iterator) or all(
            _has_type(each, type_arguments[0]) for each in value
        )
    kind = origin or hint
    # Protocols are not checked.
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    # 0 and 1 are accepted for bool.
    return isinstance(value, _ACCEPTED_TYPES.get(kind, kind)) or (
        kind is bool and isinstance(value, Integral) and value in (0, 1)
    )
