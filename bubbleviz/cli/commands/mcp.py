"""``bubbleviz mcp``: answers the questions of an AI assistant over standard input and output."""

from __future__ import annotations

from bubbleviz.cli.options import command


@command()
def mcp(folders: list[str]) -> None:
    """Serve an AI assistant over the Model Context Protocol (stdio).

    The assistant starts it. Its tools inspect, analyze, why, compare, simulate, plan and timeline
    read profiles and reports, and write nothing.
    """
    from bubbleviz.assistant import server

    server(folders).run("stdio")
