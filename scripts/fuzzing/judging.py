"""Checks the outcome of a command on a damaged input."""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Exit codes for success, rejected input, incorrect usage, and an exceeded limit.
_CODES = (0, 1, 2, 3)
_REFUSED = (1, 2)
#: Prefix of every line on standard error, and of warnings.
_LINE, _WARNING = "bubbleviz: ", "bubbleviz: warning: "
#: Part of the message about an output that cannot be written although others can.
_NOT_WRITTEN = " was not written: "
#: Maximum length of an error message, in characters.
_MAX_SENTENCE = 1_000
#: Bidirectional classes of characters that change how a terminal shows the following text.
_DIRECTIONS = {"LRO", "RLO", "LRE", "RLE", "PDF", "LRI", "RLI", "FSI", "PDI"}


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        command: Name of the command, or a path.
        code: Exit code, or None if an exception escaped.
        escaped: Exception that escaped, with its location, or "" if none escaped.
        out: Standard output.
        err: Standard error.
        cpu_s: Processor time in seconds.
    """

    command: str
    code: int | None
    escaped: str
    out: bytes
    err: bytes
    cpu_s: float


def list_contents(folder: Path) -> Mapping[str, str]:
    """Return the hash of each file in a folder, keyed by relative path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def list_problems(process: Ended, outputs: Sequence[Path], max_cpu_s: float) -> list[str]:
    """Return the problems with an outcome, each described in a few words.

    Args:
        process: How the command ended.
        outputs: Files that the command should have written.
        max_cpu_s: Maximum processor time in seconds.
    """
    if process.escaped:
        return [f"traceback: {process.escaped}"]
    problems = [] if process.code in _CODES else [f"exit code {process.code}"]
    if process.cpu_s > max_cpu_s:
        problems.append(f"took more than {max_cpu_s:g} s of processor time")
    problems += _check_text("standard output", process.out)
    problems += _check_text("standard error", process.err)
    problems += _check_messages(process)
    for path in outputs:
        problems += _check_output(path, process)
    return problems


def _check_text(stream: str, content: bytes) -> list[str]:
    """Return the problems in a text: invalid UTF-8 and control characters."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return [f"{stream} is not UTF-8"]
    directing = sorted({character for character in text if _is_directing(character)})
    return [f"{stream} contains {character!a}" for character in directing[:1]]


def _is_directing(character: str) -> bool:
    """Return whether a character controls a terminal instead of being shown."""
    if character in "\n" or " " <= character <= "~":
        return False
    is_control = unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}
    return is_control or unicodedata.bidirectional(character) in _DIRECTIONS


def _check_messages(process: Ended) -> list[str]:
    """Return the problems in a process's standard error.

    Each line must start with the message prefix. If the input is rejected, the message must be a
    single short sentence.
    """
    lines = process.err.decode("utf-8", "replace").splitlines()
    problems = [
        f"standard error has a line without a prefix: {line[:60]}"
        for line in lines
        if not line.startswith(_LINE)
    ][:1]
    if "Traceback (most recent call last)" in "\n".join(lines):
        problems.append("traceback printed")
    if any("out of memory" in line for line in lines):
        problems.append("out of memory")
    if process.code not in _REFUSED:
        return problems
    sentences = [line for line in lines if not line.startswith(_WARNING)]
    if not sentences:
        problems.append("refused without a sentence")
    elif len(sentences[-1]) > _MAX_SENTENCE:
        problems.append("refused in a sentence that is too long")
    # ``bubbleviz PATH`` first prints the command that it runs, and ``watch`` reports events.
    names_command = len(sentences) == 2 and ", because " in sentences[0]
    is_one_per_output = all(_NOT_WRITTEN in sentence for sentence in sentences)
    if len(sentences) > 1 and not (
        names_command or is_one_per_output or process.command == "watch"
    ):
        problems.append(f"refused in {len(sentences)} sentences")
    return problems


def _check_output(path: Path, process: Ended) -> list[str]:
    """Return the problems with an output file: missing, unexpected, or not valid in its format."""
    suffix = "".join(path.suffixes)
    # If only some outputs cannot be written, a message names each of them.
    is_partial = _NOT_WRITTEN.encode() in process.err
    if process.code in _REFUSED and not (is_partial and path.exists()):
        return [f"refused, but wrote {suffix}"] if path.exists() else []
    if not path.exists():
        return [f"did not write {suffix}"] if process.code == 0 else []
    content = path.read_bytes()
    if path.suffix == ".json":
        return _check_json(suffix, content)
    if path.suffix == ".svg":
        try:
            ET.fromstring(content)
        except ET.ParseError:
            return [f"{suffix} is not well-formed"]
    if path.suffix in {".csv", ".md", ".tex", ".txt", ".toml"}:
        return _check_text(suffix, content)
    return []


def _check_json(suffix: str, content: bytes) -> list[str]:
    """Return the problem with a JSON output that is not an object with finite numbers."""

    def refuse(token: str) -> float:
        raise ValueError(f"{token} is not a JSON number")

    try:
        document = json.loads(content, parse_constant=refuse, parse_float=_parse_finite)
    except ValueError:
        return [f"{suffix} is not valid JSON"]
    return [] if isinstance(document, dict) else [f"{suffix} is not an object"]


def _parse_finite(token: str) -> float:
    number = float(token)
    if not math.isfinite(number):
        raise ValueError(f"{token} is not finite")
    return number
