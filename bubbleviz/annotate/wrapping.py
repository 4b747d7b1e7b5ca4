"""Wrapping a framework's methods in ranges, and undoing it."""

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

#: Opens around a call without a range.
NO_RANGE: AbstractContextManager[object] = nullcontext()
#: Positional and keyword arguments of a call; others may take the place of the latter.
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
#: Returns the range of a call; ``self`` is the first argument of a method.
RangeOfCall = Callable[[Args, Kwargs], AbstractContextManager[object]]
#: Of recordings; None for none.
Folder = str | os.PathLike[str] | None
_ABSENT = object()

_wrapped_frameworks: dict[str, Annotations] = {}


class Annotations:
    """The wrapped methods of a framework; ``remove()`` restores them, and so does leaving ``with``.

    Attributes:
        framework: its name in messages.
        active: whether ranges are opened.
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
        """Restore the wrapped methods. Those wrapped by others since stay, without ranges."""
        self.active = False
        while self._undo:
            self._undo.pop()()
        if _wrapped_frameworks.get(self.framework) is self:
            del _wrapped_frameworks[self.framework]

    def record(self, folder: Folder) -> None:
        """Record the ranges to files until the annotations are removed; to None for not at all."""
        if folder is not None:
            self._undo.append(record(folder).stop)

    def when_removed(self, undo: Callable[[], None]) -> None:
        """Call a function when the annotations are removed."""
        self._undo.append(undo)

    def wrap(
        self,
        owner: Any,
        name: str,
        range_of_call: RangeOfCall,
        done: Callable[[Any], None] | None = None,
    ) -> tuple[Any, Any]:
        """Make a function or method run inside the range that ``range_of_call`` returns.

        ``done`` takes what it returned.

        Returns:
            The original function, and the wrapped one.

        Raises:
            AnnotationError: ``owner`` has no such function.
        """
        original = self.attribute(owner, name)
        where = f"{self.framework}'s {_path(owner)}.{name}"

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return original(*args, **kwargs)
            try:
                range_ = range_of_call(args, kwargs)
            except Exception as error:  # no annotation is worth a training run
                self._give_up(where, error)
                return original(*args, **kwargs)
            with range_:
                result = original(*args, **kwargs)
            if done is not None:
                done(result)
            return result

        self.replace(owner, name, wrapped)
        return original, wrapped

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set an attribute of a class or module until the annotations are removed."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, new)

        def undo() -> None:
            if vars(owner).get(name) is not new:
                return
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    def attribute(self, owner: Any, name: str) -> Any:
        """Return an attribute of a module or class.

        Raises:
            AnnotationError: there is none.
        """
        value = getattr(owner, name, None)
        if value is None:
            raise self._lacking(f" has no {_path(owner)}.{name}, which its ranges need")
        return value

    def module(self, name: str) -> Any:
        """Return a module of the framework, imported.

        Raises:
            AnnotationError: it cannot be.
        """
        try:
            found = importlib.import_module(name)
        except ImportError as error:
            raise self._lacking(f" has no module {name} here ({error})") from error
        for parent in itertools.accumulate(name.split("."), "{}.{}".format):
            self._version = getattr(sys.modules[parent], "__version__", self._version)
        return found

    def argument(
        self, function: Any, name: str, default: Any = None
    ) -> Callable[[Args, Kwargs], Any]:
        """Return a function that picks an argument of a call by its name, however it is passed.

        Args:
            function: the called function.
            name: of the parameter.
            default: value for a call that leaves it out.

        Raises:
            AnnotationError: the function has no such parameter.
        """
        names = list(inspect.signature(function).parameters)
        if name not in names:
            what = f"{_path(function)} has no parameter {name}"
            raise self._lacking(f"'s {what}, which the names of its ranges need")
        place = names.index(name)

        def pick(args: Args, kwargs: Kwargs) -> Any:
            return args[place] if place < len(args) else kwargs.get(name, default)

        return pick

    def _lacking(self, what: str) -> AnnotationError:
        version = f" {self._version}" if self._version else ""
        another = f"a version from {self._written_for}" if self._written_for else "another version"
        return AnnotationError(
            f"annotate: {self.framework}{version}{what}; install {another}, or name ranges "
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


def once(
    framework: str,
    wrap_all: Callable[[Annotations], None],
    folder: Folder = None,
    written_for: str = "",
) -> Annotations:
    """Return the annotations of a framework, and wrap it unless it is wrapped already.

    Args:
        framework: its name.
        wrap_all: wraps everything, or raises; then nothing stays wrapped.
        folder: where its ranges are recorded until they are removed; None for nowhere.
        written_for: its first and last version that are known to be as expected.

    Raises:
        AnnotationError: the framework is not as expected.
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


def always(new_range: Callable[..., Range], *values: Any) -> RangeOfCall:
    """Return a function that gives every call a new range of these values, whatever it is."""
    return lambda _args, _kwargs: new_range(*values)


def subclasses(base: type) -> Iterator[type]:
    """Yield the classes below a class, each once."""
    kinds: dict[type, None] = dict.fromkeys(base.__subclasses__())
    for kind in list(kinds):
        kinds.update(dict.fromkeys(subclasses(kind)))
    yield from kinds


def _path(owner: Any) -> str:
    """Return the qualified name of a module, class or function."""
    module = getattr(owner, "__module__", None)
    name = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
    return f"{module}.{name}" if module else str(name)
