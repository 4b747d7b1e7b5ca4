"""Checks that JSON reports fit the model of reports, which their JSON Schema is generated from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import json as msgspec_json

from bubbleviz.render import json_document
from bubbleviz.report.summary import RunSummary

_OPTIONS = ("-o", "--json")
_START = b'{\n"schema": "bubbleviz.report/'
_write = json_document.written


def write_checked(values: Mapping[str, Any]) -> str:
    """Return a report as JSON, like :func:`.json_document.written`.

    Raises:
        msgspec.ValidationError: The values do not fit the model.
    """
    text = _write(values)
    check_report(text.encode())
    return text


def check_report(data: bytes) -> None:
    """Check the bytes of a report; other data is not checked.

    Raises:
        msgspec.ValidationError: The report does not fit the model.
    """
    if data.startswith(_START):
        msgspec_json.decode(data, type=RunSummary)


def check_outputs(words: Sequence[str], folder: Path, printed: str) -> None:
    """Check the reports that a command wrote.

    Args:
        words: The words of the command.
        folder: The folder in which it ran.
        printed: What it printed.

    Raises:
        msgspec.ValidationError: A report does not fit the model.
    """
    check_report(printed.encode())
    for option, name in pairwise(words):
        file = folder / name
        if option in _OPTIONS and file.suffix == ".json" and file.is_file():
            check_report(file.read_bytes())
