"""One option of the command line for each renderer: ``--NAME FILE``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from bubbleviz.errors import OutputError, UsageError
from bubbleviz.render.formats import renderers


def chosen(files: Mapping[str, str | None]) -> dict[str, str]:
    """Return the kinds of output by file, of those that are given.

    Args:
        files: by kind, the file that its option names.

    Raises:
        UsageError: two kinds have the same file.
        OutputError: a kind needs what is not installed, or is nothing for the terminal that
            standard output is.
    """
    given = {file: kind for kind, file in files.items() if file is not None}
    if len(given) < sum(file is not None for file in files.values()):
        raise UsageError("two outputs name the same file; give each its own")
    known = {renderer.name: renderer for renderer in renderers()}
    for file, kind in given.items():
        if kind not in known:
            continue
        known[kind].check()
        if known[kind].binary and file == "-" and sys.stdout.isatty():
            raise OutputError(
                f"--{kind} -: is nothing for a terminal; name a file, or pass it on to a program"
            )
    return given


def with_outputs(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command one output option for each renderer, collected in ``outputs``.

    Typer reads options from the signature, so that is where they are added.
    """

    @wraps(function)
    def collecting(**options: Any) -> None:
        known = {r.name: r for r in renderers()}
        files = {name: options.pop(name) for name in known}
        given = chosen(files)
        function(**options, outputs={file: known[name] for file, name in given.items()})

    own = [p for p in signature(function, eval_str=True).parameters.values() if p.name != "outputs"]
    added = [
        Parameter(
            r.name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(
                    f"--{r.name}",
                    metavar="FILE",
                    help=f"Write {r.summary}; - for standard output.",
                ),
            ],
        )
        for r in renderers()
    ]
    needed = [p for p in own if p.default is Parameter.empty]
    parameters = [*needed, *added, *(p for p in own if p not in needed)]
    collecting.__signature__ = signature(function).replace(  # type: ignore[attr-defined]  # PEP 362
        parameters=parameters
    )
    collecting.__annotations__ = {p.name: p.annotation for p in parameters}
    return collecting
