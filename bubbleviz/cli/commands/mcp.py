"""``bubbleviz mcp``: answers the questions of an AI assistant over standard input and output."""

from __future__ import annotations

from bubbleviz.cli.help import argument
from bubbleviz.cli.options import command


@command()
def mcp(folders: list[str] = argument("FOLDERS...", "Only profiles in these are read.")) -> None:
    """Serve an AI assistant over the Model Context Protocol (stdio).

    The assistant starts it. Its tools inspect, analyze, why, compare, simulate, plan and timeline
    read profiles and reports, and write nothing.
    """
    from bubbleviz.assistant import server

    server(folders).run("stdio")
