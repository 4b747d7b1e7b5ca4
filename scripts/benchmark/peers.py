"""Other tools that put kernels under NVTX ranges, run where they are on the PATH."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmark.failures import BenchmarkError
from scripts.benchmark.processes import timed


@dataclass(frozen=True)
class Peer:
    """A tool.

    Attributes:
        name: what it is called in the table.
        programs: names of its program; the first that is on the PATH is run.
        arguments: of the command; ``{profile}`` and ``{folder}`` (where it may write) are put in.
    """

    name: str
    programs: tuple[str, ...]
    arguments: tuple[str, ...]


#: One line a peer: adding one touches nothing else.
PEERS = (
    Peer(
        "nsys stats, nvtx_gpu_proj_sum",
        ("nsys",),
        ("stats", "--report", "nvtx_gpu_proj_sum", "--format", "csv", "{profile}"),
    ),
    Peer(
        "nsys-ai, nvtx_layer_breakdown",
        ("nsys-ai",),
        ("skill", "run", "nvtx_layer_breakdown", "{profile}", "--format", "json"),
    ),
    Peer(
        "nsys2json",
        ("nsys2json", "nsys2json.py"),
        ("--filename", "{profile}", "--output", "{folder}/trace.json"),
    ),
)


@dataclass(frozen=True)
class PeerResult:
    """How a peer did.

    Attributes:
        name: of the peer.
        wall_s: how long it took; None where it did not get to its end.
        remark: why not.
    """

    name: str
    wall_s: float | None
    remark: str = ""


def run_peer(peer: Peer, profile: Path, limit_s: float) -> PeerResult:
    """Run a peer once on a profile, in a folder of its own that is then removed.

    Args:
        peer: what to run.
        profile: the profile; peers see a link or a copy, for some write beside it.
        limit_s: how long it may take.
    """
    program = next((found for name in peer.programs if (found := shutil.which(name))), None)
    if program is None:
        return PeerResult(peer.name, None, "not on the PATH")
    with tempfile.TemporaryDirectory(dir=profile.parent) as folder:
        copy = Path(folder) / profile.name
        try:
            os.link(profile, copy)
        except OSError:
            shutil.copyfile(profile, copy)
        places = {"profile": str(copy), "folder": folder}
        command = [program, *(argument.format(**places) for argument in peer.arguments)]
        try:
            cost = timed(command, limit_s)
        except BenchmarkError as error:
            return PeerResult(peer.name, None, str(error))
    if cost is None:
        return PeerResult(peer.name, None, f"ended after {limit_s:g} s")
    return PeerResult(peer.name, cost.wall_s)
