"""Renders a report as JSON. For the keys, see :class:`.summary.RunSummary`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bubbleviz.report.report import Report
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.summary import to_values
from bubbleviz.report.view import View


def render(report: Report, _: View) -> str:
    """Return the entire report as JSON text. The view is ignored."""
    return write_json(make_document(report))


def make_document(report: Report, *, by_rank: bool = True, slowdown: bool = True) -> dict[str, Any]:
    """Return a report as nested JSON values. The arguments are passed to :func:`.summarize`."""
    return to_values(summarize(report, by_rank=by_rank, slowdown=slowdown))


def write_json(values: Mapping[str, Any]) -> str:
    """Format values as JSON with one line per key and one line per item in a top-level list.

    Files in this format can be read, searched and diffed line by line. Indenting all levels would
    take 20 times longer.
    """
    encode = json.JSONEncoder(allow_nan=False).encode

    def encode_by_line(value: Any) -> str:
        if isinstance(value, list) and value:
            items = ",\n ".join(map(encode, value))
            return f"[\n {items}\n]"
        return encode(value)

    lines = (f"{encode(key)}: {encode_by_line(value)}" for key, value in values.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"
