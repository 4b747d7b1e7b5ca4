"""Wrapping a framework's methods in ranges, and undoing it."""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from bubbleviz.annotate.ranges import Range
from bubbleviz.errors import AnnotationError

#: What opens around a call of which there is nothing to say.
UNNAMED: AbstractContextManager[object] = nullcontext()
#: Positional and keyword arguments of a call.
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
#: Tells the range of a call; ``self`` is the first argument of a method.
Naming = Callable[[Args, Kwargs], AbstractContextManager[object]]
_ABSENT = object()

_known: dict[str, Annotations] = {}


class Annotations:
    """What was wrapped in a framework; ``remove()`` undoes it, and so does leaving ``with``.

    Attributes:
        framework: as it is called in messages.
        active: whether ranges are opened.
    """

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.active = True
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Annotations:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Put back what was wrapped. What others have wrapped since stays, without our ranges."""
        self.active = False
        while self._undo:
            self._undo.pop()()
        if _known.get(self.framework) is self:
            del _known[self.framework]

    def wrap(self, owner: Any, name: str, naming: Naming) -> tuple[Any, Any]:
        """Have a function or method run under the range that ``naming`` tells of each call.

        Returns:
            What was there, and what is there now.

        Raises:
            AnnotationError: ``owner`` has no such function.
        """
        original = self.sought(owner, name)
        where = f"{self.framework}'s {_path(owner)}.{name}"

        @functools.wraps(original)
        def under_range(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return original(*args, **kwargs)
            try:
                range_ = naming(args, kwargs)
            except Exception as error:  # no annotation is worth a training run
                self._give_up(where, error)
                return original(*args, **kwargs)
            with range_:
                return original(*args, **kwargs)

        self.replace(owner, name, under_range)
        return original, under_range

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

    def on_removal(self, undo: Callable[[], None]) -> None:
        """Have something else done when the annotations are removed."""
        self._undo.append(undo)

    def sought(self, owner: Any, name: str) -> Any:
        """Return an attribute of a module or class.

        Raises:
            AnnotationError: there is none.
        """
        found = getattr(owner, name, None)
        if found is None:
            raise AnnotationError(
                f"annotate: {self.framework} has no {_path(owner)}.{name}, which is where its "
                "ranges would go; name them yourself with annotate.phase, or use another version"
            )
        return found

    def module(self, name: str) -> Any:
        """Return a module of the framework, imported.

        Raises:
            AnnotationError: it cannot be.
        """
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise AnnotationError(
                f"annotate: {self.framework} has no module {name} here ({error}); install it, or "
                "name ranges yourself with annotate.phase"
            ) from error

    def argument(
        self, function: Any, name: str, default: Any = None
    ) -> Callable[[Args, Kwargs], Any]:
        """Return what picks an argument of a call by its name, however it is passed.

        Args:
            function: that is called.
            name: of the parameter.
            default: what a call that leaves it out gets.

        Raises:
            AnnotationError: the function has no such parameter.
        """
        names = list(inspect.signature(function).parameters)
        if name not in names:
            raise AnnotationError(
                f"annotate: {self.framework}'s {_path(function)} has no parameter {name}, which "
                "its ranges would be named by; name them yourself with annotate.phase, or use "
                "another version"
            )
        place = names.index(name)

        def pick(args: Args, kwargs: Kwargs) -> Any:
            return args[place] if place < len(args) else kwargs.get(name, default)

        return pick

    def _give_up(self, where: str, error: Exception) -> None:
        """Open no more ranges, and say why."""
        self.active = False
        warnings.warn(
            f"annotate: {where} cannot be named any more ({type(error).__name__}: {error}); "
            "training goes on without ranges",
            RuntimeWarning,
            stacklevel=4,
        )


def once(framework: str, wrap_all: Callable[[Annotations], None]) -> Annotations:
    """Return the annotations of a framework, which is wrapped where it is not yet.

    Args:
        framework: its name.
        wrap_all: wraps everything, or raises; then nothing stays wrapped.

    Raises:
        AnnotationError: what it looked for is not there.
    """
    if framework in _known:
        return _known[framework]
    annotations = Annotations(framework)
    try:
        wrap_all(annotations)
    except BaseException:
        annotations.remove()
        raise
    _known[framework] = annotations
    return annotations


def always(range_of: Callable[[], Range]) -> Naming:
    """Return the naming that gives every call a range of one kind."""
    return lambda _args, _kwargs: range_of()


def subclasses(base: type) -> Iterator[type]:
    """Yield the classes below a class, each once."""
    found: dict[type, None] = dict.fromkeys(base.__subclasses__())
    for kind in list(found):
        found.update(dict.fromkeys(subclasses(kind)))
    yield from found


def _path(owner: Any) -> str:
    """Return where a module, class or function is found."""
    module = getattr(owner, "__module__", None)
    name = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
    return f"{module}.{name}" if module else str(name)
