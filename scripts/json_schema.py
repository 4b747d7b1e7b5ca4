"""Write the JSON Schemas of reports, which are part of the package.

    python -m scripts.json_schema

Each schema is generated from the model of the report: types come from annotations, and descriptions
from docstrings. Run the script after changing a model.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec import json as msgspec_json

import bubbleviz
from bubbleviz.analyses.nccl.summary import NcclSummary
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.summary import RunSummary

_PACKAGE = Path(bubbleviz.__file__).parent
#: The schema file for each model.
SCHEMA_FILES: dict[type[Struct], Path] = {
    RunSummary: _PACKAGE / "report" / "report.schema.json",
    IdleSummary: _PACKAGE / "report" / "idle.schema.json",
    NcclSummary: _PACKAGE / "report" / "nccl.schema.json",
}
#: Matches a clause in a docstring that refers to Python's documentation.
_REFERENCE = re.compile(r"; see (?::\w+:`[^`]*`)(?: for [^.;]*)?")
#: Matches the entry of an attribute in the "Attributes:" section of a docstring.
_ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def schema_text(model: type[Struct]) -> str:
    """Return the JSON Schema of a model as text."""
    schema = msgspec_json.schema(model)
    for definition in schema["$defs"].values():
        _describe(definition)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(head | schema, indent=1) + "\n"


def _describe(definition: dict[str, Any]) -> None:
    """Move the descriptions of attributes from a docstring to the properties."""
    docstring = inspect.cleandoc(definition.get("description", ""))
    introduction, _, attributes = docstring.partition("\n\nAttributes:\n")
    definition["description"] = _format_sentence(introduction.partition("\n\n")[0])
    for name, text in _ATTRIBUTE.findall(attributes):
        if name in definition["properties"]:
            definition["properties"][name]["description"] = _format_sentence(text)


def _format_sentence(text: str) -> str:
    """Return a sentence from a docstring on one line, in terms of JSON and without references."""
    sentence = " ".join(_REFERENCE.sub("", text).split())
    return re.sub(r"\bNone\b", "null", sentence).replace("``", "")


if __name__ == "__main__":
    for written_model, file in SCHEMA_FILES.items():
        file.write_text(schema_text(written_model), encoding="utf-8")
