"""Saved reports: reads the JSON that ``-o report.json`` wrote.

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
from bubbleviz.model.phases import phase_of_label
from bubbleviz.model.texts import shell_word
from bubbleviz.report.idle_summary import IDLE_SCHEMA, IdleSummary
from bubbleviz.report.ratio_summary import ReportSummary
from bubbleviz.report.restrictions import find_no_pipeline
from bubbleviz.report.summary import SCHEMA, RunSummary

#: Maximum size of a report.
_MOST_BYTES = 1 << 32
#: Keys in the first bytes of traces of PyTorch and XLA, and the number of these bytes.
_OF_TRACES, _HEAD = re.compile(rb'"(traceEvents|schemaVersion|displayTimeUnit|ph)"'), 4096
#: Schema of reports that are not read any more.
_OLD_SCHEMA = "bubbleviz.report/1"
_UNREADABLE = (DecodeError, ValidationError, RecursionError, UnicodeDecodeError)


def looks_saved(path: str) -> bool:
    """Return whether a path is to be read as a report: a pipe, ``.json``, or text that opens ``{``.

    A path that cannot be read is not; its reader raises the error.
    """
    file = Path(path)
    try:
        if file.is_fifo():
            return True
        if not file.is_file():
            return False
        if file.suffix.lower() == ".json":
            with file.open("rb") as opened:
                return _OF_TRACES.search(opened.read(_HEAD)) is None
        if not file.stat().st_size:
            # A kernel's log looks like an empty file, and reading it waits.
            return False
        with file.open("rb") as opened:
            return opened.read(64).lstrip().startswith(b"{")
    except (OSError, ValueError):
        return False


def read_saved(path: str) -> ReportSummary:
    """Return a report that ``analyze -o report.json`` or ``idle -o report.json`` wrote.

    Raises:
        InputError: The file cannot be read, or is not such a report.
    """
    data = _report_bytes(path)
    if _schema_of(path, data) == IDLE_SCHEMA:
        return _checked(path, _decoded(path, data, IdleSummary))
    return _read_summary(path, data)


def read_summary(path: str) -> RunSummary:
    """Return a report that ``bubbleviz analyze -o report.json`` wrote.

    Raises:
        InputError: The file cannot be read, or is not such a report.
    """
    return _read_summary(path, _report_bytes(path))


def _read_summary(path: str, data: bytes) -> RunSummary:
    schema = _schema_of(path, data)
    if schema == IDLE_SCHEMA:
        raise _without_operations(path, _decoded(path, data, IdleSummary))
    if schema != SCHEMA:
        if schema == _OLD_SCHEMA:
            raise InputError(
                f"{path}: an earlier version of bubbleviz wrote this report; analyze the profiles "
                "again with this version: bubbleviz analyze RUN -o report.json"
            )
        raise InputError(
            f"{path}: its schema is {schema[:60]!r}, not {SCHEMA}; give the profiles of the run, "
            "or a report of them: bubbleviz analyze RUN -o report.json"
        )
    return _check_parts(path, _checked(path, _decoded(path, data, RunSummary)))


def read_pipeline(path: str) -> RunSummary:
    """Return a report with which schedules are simulated, as ``bubbleviz analyze`` wrote it.

    Raises:
        InputError: The file cannot be read, is not such a report, or is of no whole pipeline.
    """
    return check_pipeline(path, read_summary(path))


def check_pipeline(path: str, run: RunSummary) -> RunSummary:
    """Return a report if its times are those of all stages of a pipeline.

    Args:
        path: Path of the report, for messages.
        run: The report.

    Raises:
        InputError: It is of no whole pipeline.
    """
    reason = find_no_pipeline(run.restrictions)
    if reason is not None:
        raise InputError(
            f"{path}: {reason}, so its times are not those of a pipeline's stages; give "
            "analyze the profiles of all stages, or simulate the times with --tf, --tb and --tw"
        )
    return run


_Summary = TypeVar("_Summary", RunSummary, IdleSummary)


def _report_bytes(path: str) -> bytes:
    """Return the bytes of a report; a pipe can be read only once.

    Raises:
        InputError: it cannot be read.
    """
    hint = "name a report that bubbleviz analyze -o report.json wrote"
    return read_bounded(path, _MOST_BYTES, "a report", hint, pipes=True)


def _schema_of(path: str, data: bytes) -> str:
    """Return the schema that the JSON of a report names.

    Raises:
        InputError: The data is not JSON, or names no schema.
    """
    try:
        values = msgspec_json.decode(data, type=dict[str, Raw])
        return msgspec_json.decode(values["schema"], type=str)
    except KeyError:
        raise _no_report(path, "it names no schema") from None
    except _UNREADABLE as error:
        if data.startswith(b"\x1f\x8b"):
            raise InputError(f"{path}: is packed; unpack it with gunzip") from error
        raise _no_report(path, error) from error


def _decoded(path: str, data: bytes, kind: type[_Summary]) -> _Summary:
    """Return the summary in the JSON of a report.

    Raises:
        InputError: The values do not fit the model.
    """
    try:
        return msgspec_json.decode(data, type=kind)
    except _UNREADABLE as error:
        raise _no_report(path, error) from error


def _checked(path: str, summary: _Summary) -> _Summary:
    """Return a summary whose parts fit each other.

    Raises:
        InputError: They do not.
    """
    numbers = summary.summary
    missing = sorted(set(numbers.bubble_ratio) - set(numbers.window_ns))
    if summary.headline not in numbers.bubble_ratio or missing:
        what = f"the window of {missing[0][:60]!r}" if missing else "its headline among its ratios"
        raise InputError(
            f"{path}: the report lacks {what}; write it again with bubbleviz analyze -o report.json"
        )
    return summary


def _check_parts(path: str, summary: RunSummary) -> RunSummary:
    """Return a summary whose advice is listed and whose phases exist.

    Raises:
        InputError: Advice is missing, or a phase is unknown.
    """
    steps = [step.advice for step in summary.first if step.advice is not None]
    if any(index >= len(summary.advice) for index in (*steps, *summary.then)):
        raise InputError(
            f"{path}: the report lacks advice that it gives first; write it again with bubbleviz "
            "analyze -o report.json"
        )
    labels = [entry.phase for entry in summary.phase_times]
    if summary.memory is not None:
        labels += [operations.phase for operations in summary.memory.operations]
    for label in labels:
        if phase_of_label(label) is None:
            raise InputError(
                f"{path}: {label[:60]!r} is not a phase; write a report with bubbleviz analyze "
                "-o report.json"
            )
    return summary


def _without_operations(path: str, idle: IdleSummary) -> InputError:
    """Return the error for a report on idle time, which names what shows its profiles."""
    profiles = dict.fromkeys(rank.profile for rank in idle.ranks if rank.profile)
    shown = " ".join(map(shell_word, profiles))
    way = f"for a page run bubbleviz view {shown}"
    if not profiles or not all(Path(profile).exists() for profile in profiles):
        way = "a page needs its profiles, which are no longer where they were: give them to view"
    return InputError(
        f"{path}: a report on idle time, without operations; compare and gate take it, and {way}"
    )


def _no_report(path: str, why: object) -> InputError:
    return InputError(
        f"{path}: is not a bubbleviz report ({str(why)[:300]}); write one with bubbleviz "
        "analyze -o report.json"
    )
