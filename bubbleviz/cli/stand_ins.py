"""Replaces private names with stand-ins, such as ``host1`` and ``file2.sqlite``."""

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

#: Matches the suffix of a file name. The suffix is kept, because it shows the format.
_SUFFIX = re.compile(
    r"(?:\.pt)?(?:\.trace|\.xplane)?"
    r"\.(?:sqlite|db|nsys-rep|qdrep|parquet|arrows?|bvrec|zip|jsonl?|pb|pbtxt|txt|csv|toml"
    r"|svg|pdf|png|html?|tex|md|py)(?:\.gz)?$"
)
_COMPONENT = r"[^\s/\\:;,'\"()\[\]<>|]+"
#: Lookahead that matches the device after a host or file name in a rank label, such as ``GPU 0``.
_DEVICE = r"(?= (?:pid \d+ )?(?:GPU|MTIA|XPU|TPU|accelerator|host|rank) -?\d)"
#: Lookahead that also matches the device ``host``, which has no number.
_DEVICE_OR_HOST = rf"(?:{_DEVICE}|(?= (?:pid \d+ )?host\b))"
#: File names that precede the word ``host`` in ordinary sentences.
_ARTICLES = frozenset(("a", "an", "any", "each", "one", "the"))
#: Matches paths that have not been recorded yet, for example in the names of Python frames. In
#: frame names, line numbers can be written as ``#``.
_ANY_PATH = (
    rf"(?<![\w.)\]/:-])(?:~|[A-Za-z]:)?(?:[/\\]{_COMPONENT}){{2,}}"
    r"|(?<![\w./\\-])[\w./\\-]+\.py(?=\([\d#]+\)|:[\d#]+)"
)
#: Matches the function that follows the file in the name of a Python frame. The name of a frame is
#: ``train.py(29): step`` in PyTorch, and ``$train.py:29 step`` in JAX. Special names such as
#: ``__init__`` are not matched.
_FUNCTION = re.compile(r"(?<=\.py)(\([\d#]+\): |:[\d#]+ )(?!__)([^\W\d][\w.]*)")
#: Matches the name of a thread that launched a kernel, in the sentences of reports.
_THREAD = re.compile(r"(?<=\bthread )(\d+) \((.+?)\)(?=, (?:in|while|outside) )")
#: Patterns that match a process id in a label or sentence, and the UUID of a GPU or MIG instance.
_PROCESS = re.compile(r"(?<=\bpid )\d+|(?<=\bprocess )\d+")
_UUID = re.compile(
    r"(?<![\w-])(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![\w-])", re.IGNORECASE
)
#: Ratio names. Reports use them as keys, so they are never replaced.
_RATIOS = frozenset(("schedule", "stage", "step", "period"))
#: Fields whose entire text is a private name, even if the text equals a ratio name.
_NAMING_FIELDS = frozenset(("host", "path", "profile", "title"))
#: Fields that contain process ids. The ids in ``processes`` are encoded; see ``get_pid``.
_PROCESS_FIELDS = frozenset(("pid", "processes"))


def list_public_words() -> frozenset[str]:
    """Return words that are never private: phase, schedule, format and convention names."""
    phases = (phase.label for phase in Phase)
    schedules = (schedule.name for schedule in (*SCHEDULES, *FORMULAS))
    formats = (reader.name for reader in READERS)
    return frozenset((*phases, *schedules, *formats, *built_in()))


class StandIns:
    """Records private names, and replaces them with stand-ins such as ``host1``.

    A name always gets the same stand-in.

    Args:
        public: Words that are never treated as private names.
    """

    def __init__(self, public: frozenset[str]) -> None:
        self._public = public
        self._stand_in: dict[str, str] = {}
        self._paths: set[str] = set()
        self._folders: set[str] = set()
        #: Stand-ins for file names without suffix, as in rank labels. Keyed by the file name
        #: without suffix.
        self._stems: dict[str, str] = {}
        #: Stand-ins for threads, functions, processes and GPUs. Keyed by (kind, name).
        self._of_kind: dict[tuple[str, str], str] = {}
        #: Stand-ins that a text may already contain. They must not be replaced again.
        self._assigned: set[str] = set()
        self._count: Counter[str] = Counter()
        self._pattern: re.Pattern[str] | None = None

    def add_host(self, name: str) -> None:
        """Record the name of a host as private."""
        if name and name not in self._stand_in:
            self._add(name, self._number_next("host"))

    def add_path(self, path: str) -> str:
        """Record a path as private, and return its stand-in.

        The absolute path and the file name get the same stand-in. The stand-ins for directories are
        ``directory1`` and so on. The stand-ins for files are ``file1.sqlite`` and so on, with the
        suffix of the original file. Empty paths, ``-`` (standard output) and stand-ins are returned
        unchanged.
        """
        if path in ("", "-") or path in self._stand_in or path in self._assigned:
            return self._stand_in.get(path, path)
        absolute = os.path.abspath(path)  # noqa: PTH100  # links stay as entered by users
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
        """Return the text with private names replaced by stand-ins.

        Args:
            text: The text.
            field: Name of the field that contains the text, or "" if unknown. Text that equals the
                name of a ratio, such as ``step``, is replaced only in fields that contain names,
                such as ``host``.
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
        """Return the stand-in for a name that the pattern matched. New paths are recorded."""
        return self._stand_in.get(name) or self._stems.get(name) or self.add_path(name)

    def replace_in_value(self, value: Any, field: str = "", *, keys: bool = True) -> Any:
        """Return a copy of a value with private names and process ids replaced.

        Args:
            value: A string, a process id, a container, or an object whose class is defined in
                bubbleviz. Containers and objects are processed recursively. Any other value is
                returned unchanged.
            field: Name of the field that contains the value, or "" if unknown.
            keys: Whether to replace names in mapping keys too.
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
        """Return a copy of a struct or dataclass with the private names in its fields replaced.

        Args:
            value: The struct or dataclass.
            keys: Whether to replace names in mapping keys too. In structs, which are parts
                of saved reports, keys are never replaced.
        """
        if fields := getattr(value, "__struct_fields__", ()):
            # In a saved report, mapping keys are ratio, phase and column names.
            values = {
                name: self.replace_in_value(getattr(value, name), name, keys=False)
                for name in fields
            }
            return type(value)(**values)
        changed = copy.copy(value)
        for name, entry in vars(value).items():
            # Bypassing __setattr__ of a frozen dataclass is safe, because the copy is not shared.
            object.__setattr__(changed, name, self.replace_in_value(entry, name, keys=keys))
        return changed

    def _replace_in_field(self, text: str, field: str) -> str:
        """Return a field's text with private names replaced.

        The entire text of a field ``uuid`` is replaced. The text of a field ``command`` is split
        into words as a shell would do, and each word is processed by :meth:`replace_in_word`.
        """
        if field == "uuid":
            return self._get_stand_in(text, "device")
        if field == "command":
            return shlex.join(map(self.replace_in_word, shlex.split(text)))
        return self.replace_in_text(text, field)

    def replace_in_word(self, word: str) -> str:
        """Return a command-line word with private names replaced.

        Option names are kept. Comma-separated values are replaced separately.
        """
        if not word.startswith("-"):
            return ",".join(map(self.replace_in_text, word.split(",")))
        option, sign, value = word.partition("=")
        return f"{option}{sign}{self.replace_in_word(value)}" if value else word

    def _replace_process_id(self, number: int, field: str) -> int:
        """Return the stand-in for a process id.

        If the field does not contain process ids, the number is returned unchanged.
        """
        if field not in _PROCESS_FIELDS:
            return number
        return int(self._get_process(str(number if field == "pid" else get_pid(number))))

    def _replace_process_column(self, pids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a column with process ids replaced by stand-ins. -1 (unknown) is kept."""
        distinct, index = np.unique(pids, return_inverse=True)
        replaced = [
            int(self._get_process(str(pid))) if pid >= 0 else pid for pid in distinct.tolist()
        ]
        return np.array(replaced, pids.dtype)[index].reshape(pids.shape)

    def _get_process(self, pid: str) -> str:
        """Return the stand-in for a process id, which is another number as text, such as "1"."""
        if ("", pid) not in self._of_kind:
            self._of_kind["", pid] = self._number_next("")
        return self._of_kind["", pid]

    def _get_stand_in(self, name: str, kind: str) -> str:
        """Return the stand-in for a thread, function or GPU. A new name gets a new stand-in.

        Args:
            name: The name. A name that already is a stand-in is returned unchanged.
            kind: First word of the stand-in, for example "thread".
        """
        if name in self._assigned:
            return name
        if (kind, name) not in self._of_kind:
            self._of_kind[kind, name] = self._number_next(kind)
            self._assigned.add(self._of_kind[kind, name])
        return self._of_kind[kind, name]

    def _number_next(self, kind: str) -> str:
        """Return the next unused stand-in for a kind of name, such as ``host3``."""
        self._count[kind] += 1
        return f"{kind}{self._count[kind]}"

    def _add(self, name: str, stand_in: str) -> None:
        """Assign a stand-in to a name, and to the name as it is shown in messages.

        Messages show names on one line, with unprintable characters replaced by blanks.
        """
        self._stand_in[name] = stand_in
        # ``flat`` is the name as it is shown in messages.
        flat = " ".join("".join(c if c.isprintable() else " " for c in name).split())
        self._stand_in.setdefault(flat or name, stand_in)
        if name in self._paths:
            self._paths.add(flat)
        self._pattern = None

    def _compile_pattern(self) -> re.Pattern[str]:
        """Return a pattern that matches all recorded names, longest first, and any other path."""
        names = sorted({*self._stand_in, *self._folders}, key=len, reverse=True)
        labels = map(_make_label_pattern, self._stems)
        patterns = (*map(self._make_pattern, names), *labels, _ANY_PATH)
        return re.compile("|".join(patterns))

    def _make_pattern(self, name: str) -> str:
        """Return a regular expression that matches a name as a complete word.

        There are two special cases:

        - If the name is a directory, paths below the directory match as well. If the directory has
          no stand-in (the replacement for a private name), only paths below it match.
        - If the name is a path that consists only of letters, it may be an ordinary word. It is
          then matched only in a rank label, or at the start of a message and followed by a colon.
        """
        quoted = re.escape(name)
        word = rf"(?<![A-Za-z0-9]){quoted}(?![A-Za-z0-9])"
        if name in self._paths and name.isalpha():
            # The name may be an ordinary English word.
            word = rf"^{quoted}(?=: )|{_make_label_pattern(name)}"
        if name in self._folders:
            path_below = rf"(?<![A-Za-z0-9]){quoted}(?:[/\\]{_COMPONENT})+"
            # A directory with a public name, such as that of a schedule, is private only inside a
            # path.
            return rf"{path_below}|{word}" if name in self._stand_in else path_below
        return word


def _make_label_pattern(name: str) -> str:
    """Return a regular expression that matches a host or file name in a rank label.

    A rank label is a name and a device, such as ``trace GPU 0`` or ``trace host``. The words "a
    rank" and "a host" in a sentence are not labels, even if a file is called ``a``.
    """
    device = _DEVICE if name in _ARTICLES else _DEVICE_OR_HOST
    return rf"(?<![A-Za-z0-9]){re.escape(name)}{device}"
