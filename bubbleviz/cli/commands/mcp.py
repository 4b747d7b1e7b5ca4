"""``bubbleviz mcp``: a Model Context Protocol server on standard input and output."""

from __future__ import annotations

from bubbleviz.cli.help import argument
from bubbleviz.cli.options import command


@command()
def mcp(
    folders: list[str] = argument("FOLDERS...", "Folders; only files in them can be read."),
) -> None:
    """Let an AI assistant query runs (Model Context Protocol, stdio).

    The assistant starts this command. The tools inspect, analyze, why, compare, simulate, plan and
    timeline read profiles and reports, and write nothing.
    """
    from bubbleviz.assistant import make_server

    make_server(folders).run("stdio")
