"""Write the JSON Schema of reports, which the package contains.

    python -m scripts.json_schema

The schema is generated from the model of reports, :class:`.summary.RunSummary`: types from its
annotations, and descriptions from its docstrings. Run it after a change of the model.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from msgspec import json as msgspec_json

import bubbleviz
from bubbleviz.report.summary import RunSummary

FILE = Path(bubbleviz.__file__).parent / "report" / "report.schema.json"
#: A clause of a docstring that refers to Python's documentation.
_REFERENCE = re.compile(r"; see (?::\w+:`[^`]*`)(?: for [^.;]*)?")
#: The entry of an attribute in the section "Attributes:" of a docstring.
_ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def schema_text() -> str:
    """Return the JSON Schema of reports as text."""
    schema = msgspec_json.schema(RunSummary)
    for definition in schema["$defs"].values():
        _describe(definition)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(head | schema, indent=1) + "\n"


def _describe(definition: dict[str, Any]) -> None:
    """Move what a docstring says about attributes to the properties."""
    docstring = inspect.cleandoc(definition.get("description", ""))
    introduction, _, attributes = docstring.partition("\n\nAttributes:\n")
    definition["description"] = _plain(introduction.partition("\n\n")[0])
    for name, text in _ATTRIBUTE.findall(attributes):
        if name in definition["properties"]:
            definition["properties"][name]["description"] = _plain(text)


def _plain(text: str) -> str:
    """Return a sentence of a docstring on one line, in terms of JSON and without references."""
    sentence = " ".join(_REFERENCE.sub("", text).split())
    return re.sub(r"\bNone\b", "null", sentence).replace("``", "")


if __name__ == "__main__":
    FILE.write_text(schema_text(), encoding="utf-8")
