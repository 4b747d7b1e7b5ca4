"""Wrapping of a framework's methods in ranges, and undoing it."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from bubbleviz.annotate.ranges import Range
from bubbleviz.annotate.switch import record
from bubbleviz.errors import AnnotationError

#: Context manager for calls without a range.
NO_RANGE: AbstractContextManager[object] = nullcontext()
#: Positional and keyword arguments of a call; the keyword arguments may be replaced.
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
#: Returns the range of a call. The first argument of a method is ``self``.
RangeOfCall = Callable[[Args, Kwargs], AbstractContextManager[object]]
#: Folder for recordings, or None to record nothing.
Folder = str | os.PathLike[str] | None
_ABSENT = object()

_wrapped_frameworks: dict[str, Annotations] = {}


class Annotations:
    """The wrapped methods of a framework, restored by ``remove()`` or at the end of a ``with``.

    Attributes:
        framework: Name of the framework, for messages.
        active: Whether ranges are opened.
    """

    def __init__(self, framework: str, written_for: str = "") -> None:
        self.framework = framework
        self.active = True
        self._written_for = written_for
        self._version = ""
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Annotations:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Restore the wrapped methods. Methods that others wrapped later stay, without ranges."""
        self.active = False
        while self._undo:
            self._undo.pop()()
        if _wrapped_frameworks.get(self.framework) is self:
            del _wrapped_frameworks[self.framework]

    def record(self, folder: Folder) -> None:
        """Record the ranges to files until the annotations are removed; None records nothing."""
        if folder is not None:
            self._undo.append(record(folder).stop)

    def append_undo(self, undo: Callable[[], None]) -> None:
        """Register a function that is called when the annotations are removed."""
        self._undo.append(undo)

    def wrap(
        self,
        owner: Any,
        name: str,
        range_of_call: RangeOfCall,
        on_result: Callable[[Any], None] | None = None,
    ) -> tuple[Any, Any]:
        """Make a function or method run inside a range.

        If ``range_of_call`` raises, all annotations of the framework stop with a warning, and calls
        run as before.

        Args:
            owner: Module or class of the function.
            name: Name of the function.
            range_of_call: Returns the range of each call.
            on_result: Called with the result of each call.

        Returns:
            The original function and the wrapped one.

        Raises:
            AnnotationError: The owner has no function with this name.
        """
        original = self.get_attribute(owner, name)
        where = f"{self.framework}'s {_format_path(owner)}.{name}"

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return original(*args, **kwargs)
            try:
                range_ = range_of_call(args, kwargs)
            except Exception as error:  # an annotation must never end the training run
                self._give_up(where, error)
                return original(*args, **kwargs)
            with range_:
                result = original(*args, **kwargs)
            if on_result is not None:
                on_result(result)
            return result

        self.replace(owner, name, wrapped)
        return original, wrapped

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set an attribute of a class or module until the annotations are removed.

        The attribute is only restored if it still has the new value then.
        """
        original = vars(owner).get(name, _ABSENT)
        setattr(owner, name, new)

        def undo() -> None:
            if vars(owner).get(name) is not new:
                return
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

        self._undo.append(undo)

    def get_attribute(self, owner: Any, name: str) -> Any:
        """Return an attribute of a module or class.

        Raises:
            AnnotationError: The attribute does not exist.
        """
        value = getattr(owner, name, None)
        if value is None:
            raise self._describe_mismatch(
                f" has no {_format_path(owner)}.{name}, which its ranges need"
            )
        return value

    def import_module(self, name: str) -> Any:
        """Import a module of the framework, and note the framework's version.

        Raises:
            AnnotationError: The module cannot be imported.
        """
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise self._describe_mismatch(f" has no module {name} here ({error})") from error
        for parent in itertools.accumulate(name.split("."), "{}.{}".format):
            self._version = getattr(sys.modules[parent], "__version__", self._version)
        return module

    def get_argument(
        self, function: Any, name: str, default: Any = None
    ) -> Callable[[Args, Kwargs], Any]:
        """Return a function that picks an argument of a call by name, however it was passed.

        Args:
            function: Function that is called.
            name: Name of the parameter.
            default: Value for calls without the argument.

        Raises:
            AnnotationError: The function has no such parameter.
        """
        names = list(inspect.signature(function).parameters)
        if name not in names:
            problem = f"{_format_path(function)} has no parameter {name}"
            raise self._describe_mismatch(f"'s {problem}, which the names of its ranges need")
        position = names.index(name)

        def pick(args: Args, kwargs: Kwargs) -> Any:
            return args[position] if position < len(args) else kwargs.get(name, default)

        return pick

    def _describe_mismatch(self, problem: str) -> AnnotationError:
        """Return an error that says how the framework differs from the expected version."""
        version = f" {self._version}" if self._version else ""
        compatible = (
            f"a version from {self._written_for}" if self._written_for else "another version"
        )
        return AnnotationError(
            f"annotate: {self.framework}{version}{problem}; install {compatible}, or name ranges "
            "yourself with annotate.phase and annotate.iteration"
        )

    def _give_up(self, where: str, error: Exception) -> None:
        """Open no more ranges, and warn with the reason."""
        self.active = False
        warnings.warn(
            f"annotate: {where} can no longer be named ({type(error).__name__}: {error}); "
            "training continues without ranges",
            RuntimeWarning,
            stacklevel=4,
        )


def wrap_once(
    framework: str,
    wrap_all: Callable[[Annotations], None],
    folder: Folder = None,
    written_for: str = "",
) -> Annotations:
    """Wrap a framework unless it is already wrapped, and return its annotations.

    Args:
        framework: Name of the framework.
        wrap_all: Function that wraps the framework. If it raises, everything is restored.
        folder: Folder to which the ranges are recorded until the annotations are removed, or None
            to record nothing.
        written_for: First and last version that are known to work, as "0.5 to 0.19".

    Raises:
        AnnotationError: The framework differs from the expected version.
    """
    if framework in _wrapped_frameworks:
        _wrapped_frameworks[framework].record(folder)
        return _wrapped_frameworks[framework]
    annotations = Annotations(framework, written_for)
    try:
        wrap_all(annotations)
    except BaseException:
        annotations.remove()
        raise
    _wrapped_frameworks[framework] = annotations
    annotations.record(folder)
    return annotations


def make_range_factory(new_range: Callable[..., Range], *values: Any) -> RangeOfCall:
    """Return a function that creates a new range from fixed values for every call."""
    return lambda _args, _kwargs: new_range(*values)


def list_subclasses(base: type) -> Iterator[type]:
    """Yield all direct and indirect subclasses of a class, each once."""
    kinds: dict[type, None] = dict.fromkeys(base.__subclasses__())
    for kind in list(kinds):
        kinds.update(dict.fromkeys(list_subclasses(kind)))
    yield from kinds


def _format_path(owner: Any) -> str:
    """Return the qualified name of a module, class or function."""
    module = getattr(owner, "__module__", None)
    name = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
    return f"{module}.{name}" if module else str(name)
