"""Replacement of private names by stand-ins, such as ``host1`` and ``file2.sqlite``."""

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

#: Matches the suffix of a file, which names its format and is kept.
_SUFFIX = re.compile(
    r"(?:\.pt)?(?:\.trace|\.xplane)?"
    r"\.(?:sqlite|db|nsys-rep|qdrep|parquet|arrows?|bvrec|zip|jsonl?|pb|pbtxt|txt|csv|toml"
    r"|svg|pdf|png|html?|tex|md|py)(?:\.gz)?$"
)
_COMPONENT = r"[^\s/\\:;,'\"()\[\]<>|]+"
#: Lookahead for the text after a host or file name in the label of a rank.
_DEVICE = r"(?= (?:pid \d+ )?(?:GPU|MTIA|XPU|TPU|accelerator|host|rank)\b)"
#: Matches paths that were not added, for example in names of Python frames. Numbers can be ``#``.
_ANY_PATH = (
    rf"(?<![\w.)\]/:-])(?:~|[A-Za-z]:)?(?:[/\\]{_COMPONENT}){{2,}}"
    r"|(?<![\w./\\-])[\w./\\-]+\.py(?=\([\d#]+\)|:[\d#]+)"
)
#: Matches a function after its file in the name of a Python frame: ``train.py(29): step`` in
#: PyTorch, ``$train.py:29 step`` in JAX. Special names such as ``__init__`` are kept.
_FUNCTION = re.compile(r"(?<=\.py)(\([\d#]+\): |:[\d#]+ )(?!__)([^\W\d][\w.]*)")
#: Matches the name of the thread that launched a kernel, in sentences of reports.
_THREAD = re.compile(r"(?<=\bthread )(\d+) \((.+?)\)(?=, (?:in|while|outside) )")
#: Match a process id in a label or a sentence, and the UUID of a GPU or a MIG instance.
_PROCESS = re.compile(r"(?<=\bpid )\d+|(?<=\bprocess )\d+")
_UUID = re.compile(
    r"(?<![\w-])(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![\w-])", re.IGNORECASE
)
#: Names of ratios. Reports look up numbers by these names, so they are kept.
_RATIOS = frozenset(("schedule", "stage", "step", "period"))
#: Fields whose entire text is a private name, even if it equals the name of a ratio.
_NAMING_FIELDS = frozenset(("host", "path", "profile", "title"))
#: Fields with process ids: plain ones, and those that the profiles number (see ``get_pid``).
_PROCESS_FIELDS = frozenset(("pid", "processes"))


def list_public_words() -> frozenset[str]:
    """Return the words in reports that are never private: phases, schedules and formats."""
    phases = (phase.label for phase in Phase)
    schedules = (schedule.name for schedule in (*SCHEDULES, *FORMULAS))
    formats = (reader.name for reader in READERS)
    return frozenset((*phases, *schedules, *formats, *built_in()))


class StandIns:
    """A record of private names and their stand-ins, such as ``host1``.

    The same name always gets the same stand-in.

    Args:
        public: Words that are never replaced in texts.
    """

    def __init__(self, public: frozenset[str]) -> None:
        self._public = public
        self._stand_in: dict[str, str] = {}
        self._paths: set[str] = set()
        self._folders: set[str] = set()
        #: Stand-ins of file names without their suffixes, as labels of ranks show them.
        self._stems: dict[str, str] = {}
        #: Stand-ins of threads, functions, processes and GPUs, keyed by (kind, name).
        self._of_kind: dict[tuple[str, str], str] = {}
        #: Stand-ins that texts may already contain. They are not replaced again.
        self._assigned: set[str] = set()
        self._count: Counter[str] = Counter()
        self._pattern: re.Pattern[str] | None = None

    def add_host(self, name: str) -> None:
        """Add the name of a host."""
        if name and name not in self._stand_in:
            self._add(name, self._number_next("host"))

    def add_path(self, path: str) -> str:
        """Add a path, its absolute form and its file name, and return their common stand-in.

        The stand-in is ``directory1`` or ``file1.sqlite`` and so on, with the suffix of the path.
        "", ``-`` (standard output) and stand-ins are returned unchanged.
        """
        if path in ("", "-") or path in self._stand_in or path in self._assigned:
            return self._stand_in.get(path, path)
        absolute = os.path.abspath(path)  # noqa: PTH100  # links stay as users wrote them
        stand_in = self._stand_in.get(absolute)
        if stand_in is None:
            is_folder = Path(path).is_dir()
            suffix = _SUFFIX.search(path)
            stand_in = self._number_next("directory" if is_folder else "file")
            stand_in += suffix[0] if suffix and not is_folder else ""
            self._assigned.add(stand_in)
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

    def replace_in_text(self, text: str, field: str = "") -> str:
        """Return a text with its private names replaced by stand-ins.

        Args:
            text: The text.
            field: Name of the field that contains the text, or "" if unknown.
        """
        if text in self._stand_in and (field in _NAMING_FIELDS or text not in _RATIOS):
            return self._stand_in[text]
        if text in _RATIOS:
            return text
        if self._pattern is None:
            self._pattern = self._compile_pattern()
        public = self._pattern.sub(lambda m: self._find_stand_in(m[0]), text)
        if ".py" in public:
            public = _FUNCTION.sub(
                lambda m: f"{m[1]}{self._get_stand_in(m[2], 'function')}", public
            )
        public = _PROCESS.sub(lambda m: self._get_process(m[0]), public)
        public = _UUID.sub(lambda m: self._get_stand_in(m[0], "device"), public)
        if "thread " in public:
            public = _THREAD.sub(lambda m: f"{m[1]} ({self._get_stand_in(m[2], 'thread')})", public)
        return public

    def _find_stand_in(self, name: str) -> str:
        """Return the stand-in of a name that the pattern matched; unknown paths are added."""
        return self._stand_in.get(name) or self._stems.get(name) or self.add_path(name)

    def replace_in_value(self, value: Any, field: str = "", *, keys: bool = True) -> Any:
        """Return a copy of a value with stand-ins in all its texts, process ids and containers.

        Args:
            value: The value: text, process id, container, or object of bubbleviz. Anything else is
                returned unchanged.
            field: Name of the field that contains the value, or "" if unknown.
            keys: Whether to replace names in keys of mappings.
        """
        if type(value) is str:
            return self._replace_in_field(value, field)
        if type(value) is int:
            return self._replace_process_id(value, field)
        if isinstance(value, np.ndarray) and field in _PROCESS_FIELDS:
            return self._replace_process_column(value)
        if type(value) in (tuple, list):
            return type(value)(self.replace_in_value(entry, field, keys=keys) for entry in value)
        if isinstance(value, Mapping):
            return {
                self.replace_in_text(key)
                if keys and type(key) is str
                else key: self.replace_in_value(entry, str(key), keys=keys)
                for key, entry in value.items()
            }
        is_ours = type(value).__module__.startswith("bubbleviz.") and not isinstance(value, Enum)
        return self._replace_in_object(value, keys=keys) if is_ours else value

    def _replace_in_object(self, value: Any, *, keys: bool) -> Any:
        """Return a copy of a struct or dataclass of bubbleviz with stand-ins in its fields.

        Args:
            value: The struct or dataclass.
            keys: Whether to replace names in keys of mappings. In structs, which are parts of saved
                reports, keys are always kept.
        """
        if fields := getattr(value, "__struct_fields__", ()):
            # Keys of mappings in a saved report are names of ratios, phases and columns.
            values = {
                name: self.replace_in_value(getattr(value, name), name, keys=False)
                for name in fields
            }
            return type(value)(**values)
        changed = copy.copy(value)
        for name, entry in vars(value).items():
            # Bypasses __setattr__ of frozen dataclasses; nobody else has a reference to the copy.
            object.__setattr__(changed, name, self.replace_in_value(entry, name, keys=keys))
        return changed

    def _replace_in_field(self, text: str, field: str) -> str:
        """Return the text of a field with stand-ins; UUIDs and command lines are special cases."""
        if field == "uuid":
            return self._get_stand_in(text, "device")
        if field == "command":
            return shlex.join(map(self.replace_in_word, shlex.split(text)))
        return self.replace_in_text(text, field)

    def replace_in_word(self, word: str) -> str:
        """Return a word of a command line with stand-ins; names of options are kept."""
        if not word.startswith("-"):
            return ",".join(map(self.replace_in_text, word.split(",")))
        option, sign, value = word.partition("=")
        return f"{option}{sign}{self.replace_in_word(value)}" if value else word

    def _replace_process_id(self, number: int, field: str) -> int:
        """Return the stand-in of a process id, or the number itself if the field has no ids."""
        if field not in _PROCESS_FIELDS:
            return number
        return int(self._get_process(str(number if field == "pid" else get_pid(number))))

    def _replace_process_column(self, pids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a column of process ids with stand-ins; -1 (unknown) is kept."""
        distinct, index = np.unique(pids, return_inverse=True)
        replaced = [
            int(self._get_process(str(pid))) if pid >= 0 else pid for pid in distinct.tolist()
        ]
        return np.array(replaced, pids.dtype)[index].reshape(pids.shape)

    def _get_process(self, pid: str) -> str:
        """Return the stand-in of a process id, which is also a number."""
        if ("", pid) not in self._of_kind:
            self._of_kind["", pid] = self._number_next("")
        return self._of_kind["", pid]

    def _get_stand_in(self, name: str, kind: str) -> str:
        """Return the stand-in of a thread, function or GPU, and assign one if it has none.

        Args:
            name: The name, or a stand-in, which is returned unchanged.
            kind: Kind of the name, with which its stand-in starts.
        """
        if name in self._assigned:
            return name
        if (kind, name) not in self._of_kind:
            self._of_kind[kind, name] = self._number_next(kind)
            self._assigned.add(self._of_kind[kind, name])
        return self._of_kind[kind, name]

    def _number_next(self, kind: str) -> str:
        """Return the next stand-in of a kind, such as ``host3``."""
        self._count[kind] += 1
        return f"{kind}{self._count[kind]}"

    def _add(self, name: str, stand_in: str) -> None:
        """Assign a stand-in to a name, and to the form of the name in messages.

        In messages, a name is on one line, and unprintable characters are blanks.
        """
        self._stand_in[name] = stand_in
        # Messages show names on one line, with blanks for unprintable characters.
        flat = " ".join("".join(c if c.isprintable() else " " for c in name).split())
        self._stand_in.setdefault(flat or name, stand_in)
        if name in self._paths:
            self._paths.add(flat)
        self._pattern = None

    def _compile_pattern(self) -> re.Pattern[str]:
        """Return a pattern that matches every added name, longest first, and unknown paths."""
        names = sorted({*self._stand_in, *self._folders}, key=len, reverse=True)
        labels = (rf"(?<![A-Za-z0-9]){re.escape(stem)}{_DEVICE}" for stem in self._stems)
        patterns = (*map(self._make_pattern, names), *labels, _ANY_PATH)
        return re.compile("|".join(patterns))

    def _make_pattern(self, name: str) -> str:
        """Return a regular expression that matches a name as a complete word.

        If the name is a folder, paths below the folder match as well. A folder without its own
        stand-in matches only as part of such a path.
        """
        quoted = re.escape(name)
        word = rf"(?<![A-Za-z0-9]){quoted}(?![A-Za-z0-9])"
        if name in self._paths and name.isalpha():
            # The name may be an English word, so it only counts at the start of a message, followed
            # by a colon, and in the label of a rank.
            word = rf"^{quoted}(?=: )|(?<![A-Za-z0-9]){quoted}{_DEVICE}"
        if name in self._folders:
            path_below = rf"(?<![A-Za-z0-9]){quoted}(?:[/\\]{_COMPONENT})+"
            # A folder with a public name, such as a schedule, only counts as part of a path.
            return rf"{path_below}|{word}" if name in self._stand_in else path_below
        return word
