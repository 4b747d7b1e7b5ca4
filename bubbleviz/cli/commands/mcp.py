"""``bubbleviz mcp``: a Model Context Protocol server on standard input and output."""

from __future__ import annotations

from bubbleviz.cli.help import argument
from bubbleviz.cli.options import command


@command()
def mcp(
    folders: list[str] = argument(
        "FOLDERS...", "Folders with runs. Only files in these folders can be read."
    ),
) -> None:
    """Let an AI assistant query your runs (Model Context Protocol over stdio).

    The assistant starts this command. Its tools inspect, analyze, why, compare, simulate, plan and
    timeline read profiles and reports, but never write files.
    """
    from bubbleviz.assistant import make_server

    make_server(folders).run("stdio")
