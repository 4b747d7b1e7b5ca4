"""Read saved reports, which are JSON files written by ``-o report.json``.

Keys that a later version of bubbleviz added are ignored.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

from msgspec import DecodeError, Raw, ValidationError
from msgspec import json as msgspec_json

from bubbleviz.errors import InputError
from bubbleviz.model.files import read_bounded
from bubbleviz.model.phases import parse_phase_label
from bubbleviz.model.texts import quote_for_shell
from bubbleviz.report.idle_summary import IDLE_SCHEMA, IdleSummary
from bubbleviz.report.ratio_summary import ReportSummary
from bubbleviz.report.restrictions import find_no_pipeline
from bubbleviz.report.summary import SCHEMA, RunSummary

#: Maximum size of a report in bytes.
_MAX_BYTES = 1 << 32
#: Pattern for keys at the start of PyTorch and XLA traces, and the number of bytes to search.
_TRACE_KEYS, _HEAD = re.compile(rb'"(traceEvents|schemaVersion|displayTimeUnit|ph)"'), 4096
#: Schema of old reports, which can no longer be read.
_OLD_SCHEMA = "bubbleviz.report/1"
_UNREADABLE = (DecodeError, ValidationError, RecursionError, UnicodeDecodeError)
#: Messages from msgspec about values of the wrong type, values out of range, and missing values.
_WRONG_TYPE = re.compile(r"Expected `(.+)`, got `(.+)` - at `\$\.?(.+)`")
_OUT_OF_RANGE = re.compile(r"Expected `(.+?)` (.+) - at `\$\.?(.+)`")
_MISSING = re.compile(r"Object missing required field `(.+?)`(?: - at `\$\.?(.+)`)?")


def is_saved_report(path: str) -> bool:
    """Return whether a path seems to be a saved report rather than a profile.

    - A pipe is always a report.
    - A ``.json`` file is a report unless its first ``_HEAD`` bytes contain a key of a trace.
    - Any other file is a report if its first non-whitespace character is ``{``.
    - A path that cannot be read is not a report. The profile reader then raises the error.
    """
    file = Path(path)
    try:
        if file.is_fifo():
            return True
        if not file.is_file():
            return False
        if file.suffix.lower() == ".json":
            with file.open("rb") as opened:
                return _TRACE_KEYS.search(opened.read(_HEAD)) is None
        if not file.stat().st_size:
            # Kernel logs look like empty files, but reading from them would block.
            return False
        with file.open("rb") as opened:
            return opened.read(64).lstrip().startswith(b"{")
    except (OSError, ValueError):
        return False


def read_saved(path: str) -> ReportSummary:
    """Read a report written by ``analyze -o report.json`` or ``idle -o report.json``.

    Raises:
        InputError: The file cannot be read, or is not a report from ``analyze`` or ``idle``.
    """
    data = _read_bytes(path)
    if _read_schema(path, data) == IDLE_SCHEMA:
        return _check_ratios(path, _decode(path, data, IdleSummary))
    return _read_summary(path, data)


def read_summary(path: str) -> RunSummary:
    """Read a report written by ``bubbleviz analyze -o report.json``.

    Raises:
        InputError: The file cannot be read, or is not a report from ``analyze``.
    """
    return _read_summary(path, _read_bytes(path))


def _read_summary(path: str, data: bytes) -> RunSummary:
    """Decode and check a report from ``analyze``.

    Raises:
        InputError: The data is damaged, or is a report of a different kind or version.
    """
    schema = _read_schema(path, data)
    if schema == IDLE_SCHEMA:
        raise _make_idle_report_error(path, _decode(path, data, IdleSummary))
    if schema != SCHEMA:
        if schema == _OLD_SCHEMA:
            raise InputError(
                f"{path}: an earlier version of bubbleviz wrote this report; analyze the profiles "
                "again with this version: bubbleviz analyze RUN -o report.json"
            )
        raise InputError(
            f"{path}: its schema is {schema[:60]!r}, not {SCHEMA}: pass the profiles of the run, "
            "or a report written by bubbleviz analyze RUN -o report.json"
        )
    return _check_parts(path, _check_ratios(path, _decode(path, data, RunSummary)))


def read_pipeline(path: str) -> RunSummary:
    """Read a report from ``bubbleviz analyze``, and check that it describes a complete pipeline.

    Raises:
        InputError: The file cannot be read, is not a report from ``analyze``, or does not describe
            a complete pipeline.
    """
    return check_pipeline(path, read_summary(path))


def check_pipeline(path: str, run: RunSummary) -> RunSummary:
    """Check that the times of a report describe all stages of a pipeline, and return the report.

    Args:
        path: Path of the report, used in messages.
        run: The report.

    Raises:
        InputError: The times do not describe a complete pipeline.
    """
    reason = find_no_pipeline(run.restrictions)
    if reason is not None:
        raise InputError(
            f"{path}: {reason}, so its times do not describe the stages of a pipeline: analyze the "
            "profiles of all stages, or pass times with --tf, --tb and --tw"
        )
    return run


_Summary = TypeVar("_Summary", RunSummary, IdleSummary)


def _read_bytes(path: str) -> bytes:
    """Read the content of a report from a file or a pipe.

    Raises:
        InputError: The file cannot be read.
    """
    hint = "pass a report that bubbleviz analyze -o report.json wrote"
    return read_bounded(path, _MAX_BYTES, "a report", hint, pipes=True)


def _read_schema(path: str, data: bytes) -> str:
    """Return the value of the key ``schema`` in the JSON of a report.

    Raises:
        InputError: The data is not JSON, or does not have this key.
    """
    try:
        values = msgspec_json.decode(data, type=dict[str, Raw])
        return msgspec_json.decode(values["schema"], type=str)
    except KeyError:
        raise _make_no_report_error(path, "it contains no schema") from None
    except _UNREADABLE as error:
        if data.startswith(b"\x1f\x8b"):
            raise InputError(f"{path}: the report is gzipped: unpack it with gunzip") from error
        raise _make_no_report_error(path, error) from error


def _decode(path: str, data: bytes, kind: type[_Summary]) -> _Summary:
    """Decode the JSON of a report, and check the types of its values.

    Args:
        path: Path of the report, used in messages.
        data: The JSON.
        kind: Class of the summary: a report on bubbles or on idle time.

    Raises:
        InputError: The data is not JSON, or a value is missing or has the wrong type.
    """
    try:
        return msgspec_json.decode(data, type=kind)
    except _UNREADABLE as error:
        command = "idle" if kind is IdleSummary else "analyze"
        raise _make_no_report_error(path, error, command) from error


def _check_ratios(path: str, summary: _Summary) -> _Summary:
    """Check that a summary contains its primary ratio and all windows, and return the summary.

    Raises:
        InputError: A ratio or a window is missing.
    """
    numbers = summary.summary
    missing = sorted(set(numbers.bubble_ratio) - set(numbers.window_ns))
    if summary.headline not in numbers.bubble_ratio or missing:
        missing_part = f"the window of {missing[0][:60]!r}" if missing else "its primary ratio"
        raise InputError(
            f"{path}: the report lacks {missing_part}; write it again with bubbleviz analyze "
            "-o report.json"
        )
    return summary


def _check_parts(path: str, summary: RunSummary) -> RunSummary:
    """Check that a summary is consistent and names only known phases, and return the summary.

    Raises:
        InputError: The summary is inconsistent or names an unknown phase. A summary is inconsistent
            if it has no ranks, averages more iterations than it contains, or refers to missing
            advice.
    """
    n_averaged, n_iterations = summary.summary.iterations, len(summary.iterations)
    if not summary.ranks or n_averaged > n_iterations:
        problem = f"averages {n_averaged} iterations, but contains {n_iterations}"
        if not summary.ranks:
            problem = "contains no ranks"
        raise InputError(
            f"{path}: the report {problem}; write it again with bubbleviz analyze -o report.json"
        )
    steps = [step.advice for step in summary.first if step.advice is not None]
    if any(index >= len(summary.advice) for index in (*steps, *summary.then)):
        raise InputError(
            f"{path}: the report refers to advice that it does not contain; write it again with "
            "bubbleviz analyze -o report.json"
        )
    labels = [entry.phase for entry in summary.phase_times]
    if summary.memory is not None:
        labels += [operations.phase for operations in summary.memory.operations]
    for label in labels:
        if parse_phase_label(label) is None:
            raise InputError(
                f"{path}: {label[:60]!r} is not a phase; write the report again with bubbleviz "
                "analyze -o report.json"
            )
    return summary


def _make_idle_report_error(path: str, idle: IdleSummary) -> InputError:
    """Return the error for a report on idle time if a report from ``analyze`` is needed.

    If the profiles still exist, the message contains the command that shows them.
    """
    profiles = dict.fromkeys(rank.profile for rank in idle.ranks if rank.profile)
    if profiles and all(Path(profile).exists() for profile in profiles):
        hint = f"run bubbleviz view {' '.join(map(quote_for_shell, profiles))}"
    else:
        hint = "pass the profiles, which are no longer at their paths, to bubbleviz view"
    return InputError(
        f"{path}: this report is about idle time and contains no operations: use it with compare "
        f"or gate. To draw a page, {hint}"
    )


def _make_no_report_error(path: str, reason: object, command: str = "analyze") -> InputError:
    return InputError(
        f"{path}: is not a bubbleviz report ({_describe_reason(str(reason))[:300]}); write one "
        f"with bubbleviz {command} -o report.json"
    )


def _describe_reason(reason: str) -> str:
    """Reword known error messages from the JSON decoder.

    All other messages are returned unchanged.
    """
    if wrong_type := _WRONG_TYPE.fullmatch(reason):
        expected, actual, location = wrong_type.groups()
        return f"{location} has type {actual} instead of {expected}"
    if out_of_range := _OUT_OF_RANGE.fullmatch(reason):
        expected, bounds, location = out_of_range.groups()
        return f"{location} must be {expected} {bounds}"
    if missing := _MISSING.fullmatch(reason):
        field, location = missing.groups()
        return f"{location} has no field {field}" if location else f"it has no field {field}"
    return reason
