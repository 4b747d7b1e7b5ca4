"""Wrap framework methods in ranges, and restore the original methods."""

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

#: Context manager used for calls that do not get a range.
NO_RANGE: AbstractContextManager[object] = nullcontext()
#: Positional and keyword arguments of a call. A function may replace keyword arguments in place.
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
#: Function that returns the range of a call, given the call's arguments including ``self``.
RangeOfCall = Callable[[Args, Kwargs], AbstractContextManager[object]]
#: Folder for recordings, or None to record nothing.
Folder = str | os.PathLike[str] | None
_ABSENT = object()

_wrapped_frameworks: dict[str, Annotations] = {}


class Annotations:
    """The wrapped methods of a framework.

    The methods are restored by ``remove()``, or at the end of a ``with`` block.

    Args:
        framework: Name of the framework, used in messages.
        written_for: First and last supported version, such as "0.5 to 0.19", or "" if unknown.

    Attributes:
        framework: Name of the framework, used in messages.
        active: Whether calls of the wrapped methods open ranges.
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
        """Restore the original methods.

        If other code has wrapped a method again in the meantime, the method stays in place, but no
        longer opens ranges.
        """
        self.active = False
        while self._undo:
            self._undo.pop()()
        if _wrapped_frameworks.get(self.framework) is self:
            del _wrapped_frameworks[self.framework]

    def record(self, folder: Folder) -> None:
        """Start recording ranges to a folder until the annotations are removed.

        If ``folder`` is None, no recording is started.
        """
        if folder is not None:
            self._undo.append(record(folder).stop)

    def append_undo(self, undo: Callable[[], None]) -> None:
        """Register a function for :meth:`remove` to call. Functions are called in reverse order."""
        self._undo.append(undo)

    def wrap(
        self,
        owner: Any,
        name: str,
        range_of_call: RangeOfCall,
        on_result: Callable[[Any], None] | None = None,
    ) -> tuple[Any, Any]:
        """Replace a function or method so that each call runs inside a range.

        If ``range_of_call`` raises an error, a warning is issued. From then on, all wrapped methods
        of the framework run without ranges.

        Args:
            owner: Module or class that contains the function.
            name: Name of the function.
            range_of_call: Function that returns the range of a call, given the call's arguments.
            on_result: Function to call with the result of each call, after the range of the call
                has ended.

        Returns:
            The original function and the wrapped function.

        Raises:
            AnnotationError: The owner has no function with this name.
        """
        original = self.get_attribute(owner, name)
        where = f"{self.framework}'s {_format_path(owner)}.{name}"

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            """Call the original function in a range, or without a range if none can be made."""
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

        Removing the annotations restores the attribute only if it still has the new value.
        """
        original = vars(owner).get(name, _ABSENT)
        setattr(owner, name, new)

        def undo() -> None:
            """Restore the attribute if it still has the new value."""
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
            AnnotationError: The attribute does not exist or is None.
        """
        value = getattr(owner, name, None)
        if value is None:
            raise self._describe_mismatch(
                f" has no {_format_path(owner)}.{name}, which its ranges require"
            )
        return value

    def import_module(self, name: str) -> Any:
        """Import a module of the framework, and remember the framework's version for messages.

        Raises:
            AnnotationError: The module cannot be imported.
        """
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise self._describe_mismatch(f" cannot import its module {name} ({error})") from error
        for parent in itertools.accumulate(name.split("."), "{}.{}".format):
            self._version = getattr(sys.modules[parent], "__version__", self._version)
        return module

    def get_argument(
        self, function: Any, name: str, default: Any = None
    ) -> Callable[[Args, Kwargs], Any]:
        """Return a function that looks up one argument of a call.

        The argument may have been passed by position or by keyword.

        Args:
            function: Function whose calls are inspected.
            name: Name of the parameter.
            default: Value to return for calls without the argument.

        Raises:
            AnnotationError: The function has no such parameter.
        """
        names = list(inspect.signature(function).parameters)
        if name not in names:
            problem = f"{_format_path(function)} has no parameter {name}"
            raise self._describe_mismatch(f"'s {problem}, which is needed for range names")
        position = names.index(name)

        def pick(args: Args, kwargs: Kwargs) -> Any:
            return args[position] if position < len(args) else kwargs.get(name, default)

        return pick

    def _describe_mismatch(self, problem: str) -> AnnotationError:
        """Return the error to raise for a framework that differs from the expected version.

        Args:
            problem: Text that follows the name and version of the framework, such as
                " has no module x".
        """
        version = f" {self._version}" if self._version else ""
        compatible = (
            f"a version from {self._written_for}" if self._written_for else "another version"
        )
        return AnnotationError(
            f"annotate: {self.framework}{version}{problem}; install {compatible}, or add ranges "
            "yourself with annotate.phase and annotate.iteration"
        )

    def _give_up(self, where: str, error: Exception) -> None:
        """Stop opening ranges, and issue a warning with the reason.

        Args:
            where: Name of the framework and of the wrapped function.
            error: Error that occurred.
        """
        self.active = False
        warnings.warn(
            f"annotate: no range could be created for {where} ({type(error).__name__}: {error}); "
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
    """Wrap a framework, and return its annotations.

    If the framework is already wrapped, its existing annotations are returned, and only the
    recording to ``folder`` is started.

    Args:
        framework: Name of the framework.
        wrap_all: Function that wraps the framework's methods. If it raises an error, all methods
            are restored.
        folder: Folder to which ranges are recorded until the annotations are removed, or None to
            record nothing.
        written_for: First and last supported version, such as "0.5 to 0.19".

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
    """Return a function that calls ``new_range(*values)`` to create the range of a call.

    The arguments of the call are ignored.
    """
    return lambda _args, _kwargs: new_range(*values)


def list_subclasses(base: type) -> Iterator[type]:
    """Yield all direct and indirect subclasses of a class, without duplicates."""
    kinds: dict[type, None] = dict.fromkeys(base.__subclasses__())
    for kind in list(kinds):
        kinds.update(dict.fromkeys(list_subclasses(kind)))
    yield from kinds


def _format_path(owner: Any) -> str:
    """Return the full name of a module, class or function, such as ``package.module.Class``."""
    module = getattr(owner, "__module__", None)
    name = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
    return f"{module}.{name}" if module else str(name)
