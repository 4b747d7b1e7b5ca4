"""Checks JSON reports against their models, from which the JSON Schemas are generated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec import json as msgspec_json

from bubbleviz.analyses.idle import outputs as idle_outputs
from bubbleviz.analyses.nccl import outputs as nccl_outputs
from bubbleviz.analyses.nccl.summary import NCCL_SCHEMA, NcclSummary
from bubbleviz.render import json_document
from bubbleviz.report.idle_summary import IDLE_SCHEMA, IdleSummary
from bubbleviz.report.summary import SCHEMA, RunSummary

#: The msgspec model of each schema.
MODELS: dict[str, type[Struct]] = {
    SCHEMA: RunSummary,
    IDLE_SCHEMA: IdleSummary,
    NCCL_SCHEMA: NcclSummary,
}
_OPTIONS = ("-o", "--json")
_START = re.compile(rb'\{\n ?"schema": "([^"]+)"')
#: (module, name) of each function that writes the JSON of a report.
_WRITERS = (
    (json_document, "write_json"),
    (idle_outputs, "format_json"),
    (nccl_outputs, "format_json"),
)


def check_written_reports(patch: pytest.MonkeyPatch) -> None:
    """Make every function that writes a report as JSON check its output."""
    for module, name in _WRITERS:
        patch.setattr(module, name, _add_check(getattr(module, name)))


def _add_check(write: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that writes a report and checks it.

    The function raises :class:`msgspec.ValidationError` if the values do not fit the model.
    """

    def write_checked(values: Mapping[str, Any]) -> str:
        text = write(values)
        check_report(text.encode())
        return text

    return write_checked


def check_report(data: bytes) -> None:
    """Check the bytes if they are a report, and ignore any other data.

    Raises:
        msgspec.ValidationError: The report does not fit the model.
    """
    start = _START.match(data)
    model = MODELS.get(start[1].decode()) if start else None
    if model is not None:
        msgspec_json.decode(data, type=model)


def check_outputs(words: Sequence[str], folder: Path, printed: str) -> None:
    """Check the reports that a command wrote.

    Args:
        words: Command line, split into words.
        folder: The folder in which the command ran.
        printed: Standard output of the command.

    Raises:
        msgspec.ValidationError: A report does not fit the model.
    """
    check_report(printed.encode())
    for option, name in pairwise(words):
        file = folder / name
        if option in _OPTIONS and file.suffix == ".json" and file.is_file():
            check_report(file.read_bytes())
