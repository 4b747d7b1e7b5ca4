"""One option of the command line for each renderer: ``--NAME FILE``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from bubbleviz.errors import UsageError
from bubbleviz.renderers import renderers


def with_outputs(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command one output option for each renderer, collected in ``outputs``.

    Typer reads options from the signature, so that is where they are added.
    """

    @wraps(function)
    def collecting(**options: Any) -> None:
        files = [(options.pop(r.name), r) for r in renderers()]
        given = {file: renderer for file, renderer in files if file is not None}
        if len(given) < sum(file is not None for file, _ in files):
            raise UsageError("two outputs name the same file; give each its own")
        function(**options, outputs=given)

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
    parameters = [own[0], *added, *own[1:]]
    collecting.__signature__ = signature(function).replace(  # type: ignore[attr-defined]  # PEP 362
        parameters=parameters
    )
    collecting.__annotations__ = {p.name: p.annotation for p in parameters}
    return collecting
