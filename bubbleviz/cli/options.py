"""The options that several commands share, and one option for each output format of ``analyze``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from bubbleviz.errors import OutputError, UsageError
from bubbleviz.render.formats import renderers

#: The value of every option that names an output.
FILE = "FILE"

RunProfiles = Annotated[
    list[str],
    typer.Argument(
        help="Profiles of one run, or directories of them: Nsight Systems exports (.sqlite) or "
        "reports (.nsys-rep), PyTorch traces (.json, .json.gz), XLA profiles (.xplane.pb, "
        ".trace.json.gz)."
    ),
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace existing outputs.")]
Skip = Annotated[
    int, typer.Option(min=0, metavar="N", help="Leave the first N iterations out of averages.")
]
Conventions = Annotated[
    list[str] | None,
    typer.Option(
        "--convention",
        metavar="NAME|FILE",
        help="NVTX convention of the range names; recognised if not given.",
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        metavar="iteration:5-8|time:1.5s-3s",
        help="Analyse only this part of the run: iterations by name, or a time of the first "
        "profile.",
    ),
]
KeepExport = Annotated[
    bool, typer.Option("--keep-export", help="Keep the exports made of .nsys-rep reports.")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        metavar="N",
        help="Threads for one profile, processes for several; all cores if not given.",
    ),
]
JsonFile = Annotated[
    str | None, typer.Option("--json", metavar=FILE, help="Write JSON; - for standard output.")
]
CsvFile = Annotated[
    str | None, typer.Option("--csv", metavar=FILE, help="Write CSV; - for standard output.")
]
SvgFile = Annotated[
    str | None, typer.Option("--svg", metavar=FILE, help="Draw an SVG; - for standard output.")
]
PdfFile = Annotated[
    str | None, typer.Option("--pdf", metavar=FILE, help="Draw a PDF; - for standard output.")
]
PngFile = Annotated[
    str | None, typer.Option("--png", metavar=FILE, help="Draw a PNG; - for standard output.")
]


def formats_by_file(files: Mapping[str, str | None]) -> dict[str, str]:
    """Return the output format of each file that an option names.

    Args:
        files: file by format; None where the option was not given.

    Raises:
        UsageError: two formats have the same file.
        OutputError: a format needs a package that is not installed, or is binary and standard
            output is a terminal.
    """
    named = {file: name for name, file in files.items() if file is not None}
    if len(named) < sum(file is not None for file in files.values()):
        raise UsageError("two outputs name the same file; give each its own")
    known = {renderer.name: renderer for renderer in renderers()}
    for file, name in named.items():
        if name not in known:
            continue
        known[name].check()
        if known[name].binary and file == "-" and sys.stdout.isatty():
            raise OutputError(
                f"--{name} -: refusing to write binary data to a terminal; name a file or pipe it"
            )
    return named


def with_outputs(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one output option for each renderer, collected in ``outputs``.

    Typer reads options from the signature, so that is where they are added.
    """
    by_name = {renderer.name: renderer for renderer in renderers()}

    @wraps(command)
    def with_collected(**options: Any) -> None:
        formats = formats_by_file({name: options.pop(name) for name in by_name})
        command(**options, outputs={file: by_name[name] for file, name in formats.items()})

    declared = [
        parameter
        for parameter in signature(command, eval_str=True).parameters.values()
        if parameter.name != "outputs"
    ]
    added = [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(
                    f"--{name}",
                    metavar=FILE,
                    help=f"Write {renderer.summary}; - for standard output.",
                ),
            ],
        )
        for name, renderer in by_name.items()
    ]
    required = [parameter for parameter in declared if parameter.default is Parameter.empty]
    optional = [parameter for parameter in declared if parameter.default is not Parameter.empty]
    parameters = [*required, *added, *optional]
    with_collected.__signature__ = signature(command).replace(  # type: ignore[attr-defined]  # PEP 362
        parameters=parameters
    )
    with_collected.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_collected
