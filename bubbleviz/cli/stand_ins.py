"""Stand-ins: the words that replace private names, such as ``host1`` and ``file2.sqlite``."""

from __future__ import annotations

import copy
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from bubbleviz.conventions.convention_file import built_in
from bubbleviz.model.phases import Phase
from bubbleviz.model.profile import get_pid
from bubbleviz.model.texts import quote_for_shell
from bubbleviz.schedules.known import FORMULAS, SCHEDULES
from bubbleviz.sources.paths import strip_profile_suffix
from bubbleviz.sources.readers import READERS

#: Endings of files, which name a format and are kept.
_SUFFIX = re.compile(
    r"(?:\.pt)?(?:\.trace|\.xplane)?"
    r"\.(?:sqlite|db|nsys-rep|qdrep|parquet|arrows?|bvrec|zip|jsonl?|pb|pbtxt|txt|csv|toml"
    r"|svg|pdf|png|html?|tex|md|py)(?:\.gz)?$"
)
_COMPONENT = r"[^\s/\\:;,'\"()\[\]<>|]+"
#: What follows the name of a host or file in the label of a rank.
_DEVICE = r"(?= (?:pid \d+ )?(?:GPU|MTIA|XPU|TPU|accelerator|host|rank)\b)"
#: Paths that were never noted, as in the names of Python frames; ``#`` may stand for numbers.
_ANY_PATH = (
    rf"(?<![\w.)\]/:-])(?:~|[A-Za-z]:)?(?:[/\\]{_COMPONENT}){{2,}}"
    r"|(?<![\w./\\-])[\w./\\-]+\.py(?=\([\d#]+\)|:[\d#]+)"
)
#: A function after its file, as in the names of Python frames: ``train.py(29): step`` in PyTorch,
#: ``$train.py:29 step`` in JAX. Names of Python itself, such as ``__init__``, are kept.
_FUNCTION = re.compile(r"(?<=\.py)(\([\d#]+\): |:[\d#]+ )(?!__)([^\W\d][\w.]*)")
#: The name of the thread that launched a kernel, as reports write it.
_THREAD = re.compile(r"(?<=\bthread )(\d+) \((.+?)\)(?=, (?:in|while|outside) )")
#: A process id in a label or a sentence, and the UUID of a GPU or of a MIG instance.
_PROCESS = re.compile(r"(?<=\bpid )\d+|(?<=\bprocess )\d+")
_UUID = re.compile(
    r"(?<![\w-])(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![\w-])", re.IGNORECASE
)
#: Names of ratios, by which reports look up their numbers.
_RATIOS = frozenset(("schedule", "stage", "step", "period"))
#: Fields whose whole text is a private name, even if it is also a ratio's name.
_NAMING_FIELDS = frozenset(("host", "path", "profile", "title"))
#: Fields with process ids: plain ones, and those that the profiles number (see ``get_pid``).
_PROCESS_FIELDS = frozenset(("pid", "processes"))


def public_words() -> frozenset[str]:
    """Return the words of reports that are never private: phases, schedules, formats and such."""
    phases = (phase.label for phase in Phase)
    schedules = (schedule.name for schedule in (*SCHEDULES, *FORMULAS))
    formats = (reader.name for reader in READERS)
    return frozenset((*phases, *schedules, *formats, *built_in()))


class StandIns:
    """Private names and their stand-ins, such as ``host1`` and ``file2.sqlite``.

    Args:
        public: Words that are never replaced inside texts.
    """

    def __init__(self, public: frozenset[str]) -> None:
        self._public = public
        self._stand_in: dict[str, str] = {}
        self._paths: set[str] = set()
        self._folders: set[str] = set()
        #: Names of files without their endings, as labels of ranks show them.
        self._stems: dict[str, str] = {}
        #: Stand-ins of threads, functions, processes and GPUs, by kind and name.
        self._of_kind: dict[tuple[str, str], str] = {}
        #: Stand-ins that a text may already contain.
        self._given: set[str] = set()
        self._count: Counter[str] = Counter()
        self._pattern: re.Pattern[str] | None = None

    def add_host(self, name: str) -> None:
        """Add the name of a host."""
        if name and name not in self._stand_in:
            self._add(name, self._numbered("host"))

    def add_path(self, path: str) -> str:
        """Add a path, the same path from the root, and the file's name; return their stand-in."""
        if path in ("", "-") or path in self._stand_in or path in self._given:
            return self._stand_in.get(path, path)
        absolute = os.path.abspath(path)  # noqa: PTH100  # links stay as users wrote them
        stand_in = self._stand_in.get(absolute)
        if stand_in is None:
            is_folder = Path(path).is_dir()
            suffix = _SUFFIX.search(path)
            stand_in = self._numbered("directory" if is_folder else "file")
            stand_in += suffix[0] if suffix and not is_folder else ""
            self._given.add(stand_in)
            if is_folder:
                self._folders |= {path, absolute}
        name = Path(absolute).name
        if (stem := strip_profile_suffix(name)) not in self._public | {"", name}:
            self._stems.setdefault(stem, strip_profile_suffix(stand_in))
        for variant in (path, absolute, name):
            if variant not in self._stand_in and variant not in self._public | {"", ".", "..", "/"}:
                self._paths.add(variant)
                self._add(variant, stand_in)
                self._stand_in.setdefault(quote_for_shell(variant), stand_in)
        return stand_in

    def text(self, text: str, field: str = "") -> str:
        """Return a text with stand-ins for its private names.

        Args:
            text: The text.
            field: Name of the field that holds it, or "" if unknown.
        """
        if text in self._stand_in and (field in _NAMING_FIELDS or text not in _RATIOS):
            return self._stand_in[text]
        if text in _RATIOS:
            return text
        if self._pattern is None:
            self._pattern = self._compiled()
        shown = self._pattern.sub(lambda m: self._matched(m[0]), text)
        if ".py" in shown:
            shown = _FUNCTION.sub(lambda m: f"{m[1]}{self._named(m[2], 'function')}", shown)
        shown = _PROCESS.sub(lambda m: self._process(m[0]), shown)
        shown = _UUID.sub(lambda m: self._named(m[0], "device"), shown)
        if "thread " in shown:
            shown = _THREAD.sub(lambda m: f"{m[1]} ({self._named(m[2], 'thread')})", shown)
        return shown

    def _matched(self, name: str) -> str:
        """Return the stand-in of a part of a text that the pattern matches."""
        return self._stand_in.get(name) or self._stems.get(name) or self.add_path(name)

    def value(self, value: Any, field: str = "", *, keys: bool = True) -> Any:
        """Return a value with stand-ins for the private names in all its texts and tables.

        Args:
            value: The value; anything but texts, process ids and containers is returned as it is.
            field: Name of the field that holds it, or "" if unknown.
            keys: Whether keys of mappings may be names.
        """
        if type(value) is str:
            return self._text_of_field(value, field)
        if type(value) is int:
            return self._process_id(value, field)
        if isinstance(value, np.ndarray) and field in _PROCESS_FIELDS:
            return self._process_column(value)
        if type(value) in (tuple, list):
            return type(value)(self.value(entry, field, keys=keys) for entry in value)
        if isinstance(value, Mapping):
            return {
                self.text(key) if keys and type(key) is str else key: self.value(
                    entry, str(key), keys=keys
                )
                for key, entry in value.items()
            }
        is_ours = type(value).__module__.startswith("bubbleviz.") and not isinstance(value, Enum)
        return self._object(value, keys=keys) if is_ours else value

    def _object(self, value: Any, *, keys: bool) -> Any:
        """Return a copy of an object of bubbleviz with stand-ins in its attributes."""
        if fields := getattr(value, "__struct_fields__", ()):
            # Keys of mappings in a saved report are names of ratios, phases and columns.
            values = {name: self.value(getattr(value, name), name, keys=False) for name in fields}
            return type(value)(**values)
        changed = copy.copy(value)
        for name, entry in vars(value).items():
            # The copy is new, so that a frozen dataclass may still be filled.
            object.__setattr__(changed, name, self.value(entry, name, keys=keys))
        return changed

    def _text_of_field(self, text: str, field: str) -> str:
        if field == "uuid":
            return self._named(text, "device")
        if field == "command":
            return shlex.join(map(self.command_word, shlex.split(text)))
        return self.text(text, field)

    def command_word(self, word: str) -> str:
        """Return a word of a command line: options are kept, and their values replaced."""
        if not word.startswith("-"):
            return ",".join(map(self.text, word.split(",")))
        option, sign, value = word.partition("=")
        return f"{option}{sign}{self.command_word(value)}" if value else word

    def _process_id(self, number: int, field: str) -> int:
        """Return the stand-in of a process id; a number in another field is returned as it is."""
        if field not in _PROCESS_FIELDS:
            return number
        return int(self._process(str(number if field == "pid" else get_pid(number))))

    def _process_column(self, pids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a column of process ids with stand-ins; -1 means unknown and is kept."""
        distinct, index = np.unique(pids, return_inverse=True)
        shown = [int(self._process(str(pid))) if pid >= 0 else pid for pid in distinct.tolist()]
        return np.array(shown, pids.dtype)[index].reshape(pids.shape)

    def _process(self, pid: str) -> str:
        """Return the stand-in of a process id, a number, so that columns keep their type."""
        if ("", pid) not in self._of_kind:
            self._of_kind["", pid] = self._numbered("")
        return self._of_kind["", pid]

    def _named(self, name: str, kind: str) -> str:
        """Return the stand-in of a thread, function or GPU; a stand-in stays itself."""
        if name in self._given:
            return name
        if (kind, name) not in self._of_kind:
            self._of_kind[kind, name] = self._numbered(kind)
            self._given.add(self._of_kind[kind, name])
        return self._of_kind[kind, name]

    def _numbered(self, kind: str) -> str:
        self._count[kind] += 1
        return f"{kind}{self._count[kind]}"

    def _add(self, name: str, stand_in: str) -> None:
        self._stand_in[name] = stand_in
        # Messages show names on one line, without characters that do not print.
        flat = " ".join("".join(c if c.isprintable() else " " for c in name).split())
        self._stand_in.setdefault(flat or name, stand_in)
        if name in self._paths:
            self._paths.add(flat)
        self._pattern = None

    def _compiled(self) -> re.Pattern[str]:
        """Return a pattern of every known name, the longest first, and of unknown paths."""
        names = sorted({*self._stand_in, *self._folders}, key=len, reverse=True)
        labels = (rf"(?<![A-Za-z0-9]){re.escape(stem)}{_DEVICE}" for stem in self._stems)
        patterns = (*map(self._pattern_of, names), *labels, _ANY_PATH)
        return re.compile("|".join(patterns))

    def _pattern_of(self, name: str) -> str:
        quoted = re.escape(name)
        alone = rf"(?<![A-Za-z0-9]){quoted}(?![A-Za-z0-9])"
        if name in self._paths and name.isalpha():
            # A file may have the name of an English word; messages begin with a path and a colon.
            alone = rf"^{quoted}(?=: )|(?<![A-Za-z0-9]){quoted}{_DEVICE}"
        if name in self._folders:
            inside = rf"(?<![A-Za-z0-9]){quoted}(?:[/\\]{_COMPONENT})+"
            # A folder may have the name of a schedule, which is kept on its own.
            return rf"{inside}|{alone}" if name in self._stand_in else inside
        return alone
