"""Names that nobody else should read: of hosts, files, threads and GPUs, and what stands for them.

Whoever reads a file or a host notes its name; before anything is shown, the names in it are
replaced, the same name by the same words. Nothing is noted or replaced until :func:`hide` is
called, nor after its :func:`scope` ends.
"""

from __future__ import annotations

import copy
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import shell_word

#: Endings that tell a format, and nobody's secret.
_SUFFIX = re.compile(
    r"(?:\.pt)?(?:\.trace|\.xplane)?"
    r"\.(?:sqlite|nsys-rep|qdrep|jsonl?|pb|pbtxt|txt|csv|toml|svg|pdf|png|html?|tex|md|py)(?:\.gz)?$"
)
_COMPONENT = r"[^\s/\\:;,'\"()\[\]<>|]+"
#: Paths that nobody noted, as in the names of Python's frames; # may stand for numbers.
_ANY_PATH = (
    rf"(?<![\w.)\]/:-])(?:~|[A-Za-z]:)?(?:[/\\]{_COMPONENT}){{2,}}"
    r"|(?<![\w./\\-])[\w./\\-]+\.py(?=\([\d#]+\)|:[\d#]+)"
)
#: A function that stands with its file, as in the names of Python's frames: those of PyTorch,
#: ``train.py(29): step``, and of JAX, ``$train.py:29 step``. What Python itself names stays.
_FUNCTION = re.compile(r"(?<=\.py)(\([\d#]+\): |:[\d#]+ )(?!__)([^\W\d][\w.]*)")
#: The name of a thread, where a report says what launched a kernel.
_THREAD = re.compile(r"(?<=\bthread )(\d+) \((.+?)\)(?=, (?:in|while|outside) )")
#: A process, where a label or a sentence tells it, and the UUID of a GPU or of a part of one.
_PROCESS = re.compile(r"(?<=\bpid )\d+|(?<=\bprocess )\d+")
_UUID = re.compile(
    r"(?<![\w-])(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![\w-])", re.IGNORECASE
)
#: Names of ratios, by which reports look up their numbers.
_TERMS = frozenset(("schedule", "stage", "step", "period"))
_NAMING = frozenset(("host", "path", "profile", "title"))

ValueT = TypeVar("ValueT")


class _Names:
    """The noted names, each with the words that stand for it."""

    def __init__(self, terms: frozenset[str]) -> None:
        self._terms = terms
        self._words: dict[str, str] = {}
        self._paths: set[str] = set()
        self._folders: set[str] = set()
        #: What stands for threads and functions.
        self._called: dict[tuple[str, str], str] = {}
        # What stands for files, threads, functions, processes and GPUs.
        self._shown: set[str] = set()
        self._numbers: Counter[str] = Counter()
        self._pattern: re.Pattern[str] | None = None

    def host(self, name: str) -> None:
        """Note the name of a host."""
        if name and name not in self._words:
            self._add(name, self._numbered("host"))

    def path(self, path: str) -> str:
        """Note a path, its name, and the same path from the root; return what stands for it."""
        if path in ("", "-") or path in self._words or path in self._shown:
            return self._words.get(path, path)
        whole = os.path.abspath(path)  # noqa: PTH100  # links stay as users wrote them
        words = self._words.get(whole)
        if words is None:
            folder = Path(path).is_dir()
            suffix = _SUFFIX.search(path)
            words = self._numbered("directory" if folder else "file")
            words += suffix[0] if suffix and not folder else ""
            self._shown.add(words)
            if folder:
                self._folders |= {path, whole}
        for variant in (path, whole, Path(path).name):
            known = variant in self._words or variant in self._terms
            if variant and not known and variant not in (".", "..", "/"):
                self._paths.add(variant)
                self._add(variant, words)
                self._words.setdefault(shell_word(variant), words)
        return words

    def text(self, text: str, field: str = "") -> str:
        """Return a text without noted names, paths and names of threads."""
        if text in self._words and (field in _NAMING or text not in _TERMS):
            return self._words[text]
        if text in _TERMS:
            return text
        if self._pattern is None:
            self._pattern = self._compiled()
        word = self._word_of
        shown = self._pattern.sub(lambda m: self._words.get(m[0]) or self.path(m[0]), text)
        if ".py" in shown:
            shown = _FUNCTION.sub(lambda m: f"{m[1]}{word(m[2], 'function')}", shown)
        # What stands for a process is a number, too, so that columns stay of one kind.
        shown = _PROCESS.sub(lambda m: word(m[0], ""), shown)
        shown = _UUID.sub(lambda m: word(m[0], "device"), shown)
        if "thread " in shown:
            shown = _THREAD.sub(lambda m: f"{m[1]} ({word(m[2], 'thread')})", shown)
        return shown

    def value(self, value: Any, field: str = "", *, keys: bool = True) -> Any:
        """Return a value with all texts in it replaced; tables keep their columns of numbers."""
        if type(value) is str:
            return self._word_of(value, "device") if field == "uuid" else self.text(value, field)
        if field == "pid" and type(value) is int:
            return int(self._word_of(str(value), ""))
        if type(value) in (tuple, list):
            return type(value)(self.value(entry, field, keys=keys) for entry in value)
        if isinstance(value, Mapping):
            return {
                self.text(key) if keys and type(key) is str else key: self.value(
                    entry, str(key), keys=keys
                )
                for key, entry in value.items()
            }
        if type(value).__module__.startswith("bubbleviz.") and not isinstance(value, Enum):
            changed = copy.copy(value)
            for name, entry in vars(value).items():
                # Frozen as it is, nobody else has seen the copy.
                object.__setattr__(changed, name, self.value(entry, name, keys=keys))
            return changed
        return value

    def _numbered(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{kind}{self._numbers[kind]}"

    def _add(self, name: str, words: str) -> None:
        self._words[name] = words
        # Messages show names on one line, without characters that do not print.
        flat = " ".join("".join(c if c.isprintable() else " " for c in name).split())
        self._words.setdefault(flat or name, words)
        if name in self._paths:
            self._paths.add(flat)
        self._pattern = None

    def _compiled(self) -> re.Pattern[str]:
        known = [self._as_pattern(name) for name in sorted(self._words, key=len, reverse=True)]
        return re.compile("|".join([*known, _ANY_PATH]))

    def _as_pattern(self, name: str) -> str:
        quoted = re.escape(name)
        alone = rf"(?<![A-Za-z0-9]){quoted}(?![A-Za-z0-9])"
        if name in self._paths and name.isalpha():
            # A file can be named as a word of our sentences is, which begin with a path.
            alone = rf"^{quoted}(?=: )"
        if name in self._folders:
            return rf"(?<![A-Za-z0-9]){quoted}(?:[/\\]{_COMPONENT})+|{alone}"
        return alone

    def _word_of(self, name: str, kind: str) -> str:
        """Return what stands for a name; a text may pass here again, and keeps its words."""
        if name in self._shown:
            return name
        if (kind, name) not in self._called:
            self._called[kind, name] = self._numbered(kind)
            self._shown.add(self._called[kind, name])
        return self._called[kind, name]


_NAMES: ContextVar[_Names | None] = ContextVar("private names", default=None)


@contextmanager
def scope() -> Iterator[None]:
    """Show all names as they are, until :func:`hide` is called."""
    token = _NAMES.set(None)
    try:
        yield
    finally:
        _NAMES.reset(token)


def hide(terms: Iterable[str] = ()) -> None:
    """Replace names from here on.

    Args:
        terms: what reports call schedules, conventions and the like, which is nobody's name.
    """
    phases = (phase.label for phase in Phase)
    _NAMES.set(_NAMES.get() or _Names(frozenset((*phases, *terms))))


def note_paths(paths: Sequence[str]) -> None:
    """Note the paths of files and directories."""
    names = _NAMES.get()
    if names is not None:
        for path in paths:
            names.path(path)


def note_host(name: str) -> None:
    """Note the name of a host."""
    names = _NAMES.get()
    if names is not None:
        names.host(name)


def anonymous(value: ValueT, *, keys: bool = True) -> ValueT:
    """Return a value with all names in it replaced if they are hidden, else as it is.

    Args:
        value: a text, a dataclass, or tuples, lists and mappings of them.
        keys: whether keys of mappings may hold names, too.
    """
    names = _NAMES.get()
    replaced: ValueT = value if names is None else names.value(value, keys=keys)
    return replaced


def anonymous_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, options as they are and their values replaced."""
    return [_anonymous_word(word) for word in words]


def _anonymous_word(word: str) -> str:
    if not word.startswith("-"):
        return ",".join(map(anonymous, word.split(",")))
    option, sign, value = word.partition("=")
    return f"{option}{sign}{_anonymous_word(value)}" if value else word
