"""The gallery: runs with a known fault or schedule, as terminal output, picture and page."""

from __future__ import annotations

import html
import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
#: Width of terminal output in columns.
_WIDTH = 82
_PLANT = "python scripts/make_fixture.py"
#: Options with jitter, because real kernels and links never take exactly the same time.
_USUAL = "--iterations 4 --jitter 0.02 --transfer-ns 20000"
#: Background color from style.css, and colors whose contrast with it is at least 4.5.
_THEME = TerminalTheme(
    (28, 33, 40),
    (208, 215, 222),
    [
        *[(139, 148, 158), (255, 123, 114), (86, 211, 100), (227, 179, 65)],
        *[(121, 192, 255), (210, 168, 255), (86, 212, 221), (208, 215, 222)],
    ],
    [
        *[(139, 148, 158), (255, 161, 152), (126, 231, 135), (242, 204, 96)],
        *[(165, 214, 255), (226, 197, 255), (179, 240, 255), (255, 255, 255)],
    ],
)


@dataclass(frozen=True)
class Shown:
    """A run in the gallery.

    Attributes:
        name: Name of the page and folder.
        title: Title of the page.
        text: Description of the run.
        planted: Command that writes the run, without its last argument (the folder).
        run: Folder of the run inside the folder that the command writes.
        options: Options of ``bubbleviz analyze`` in addition to the outputs.
    """

    name: str
    title: str
    text: str
    planted: str
    run: str = ""
    options: str = ""


RUNS = (
    Shown(
        "slow-rank",
        "A slow rank",
        "One GPU of eight takes 1.3 times as long as its replica. Seven GPUs wait for it; the GPUs "
        "of the other replica wait in the reduce-scatter of the gradients.",
        f"{_PLANT} --replicas 2 --reduce-ns 400000 --slow-rank 5 --slow-rank-factor 1.3 {_USUAL}",
    ),
    Shown(
        "uneven-stage",
        "An uneven stage",
        "Stage 2 has 1.4 times the work of the other stages, which wait for it.",
        f"{_PLANT} --slow-stage 2 --slow-factor 1.4 {_USUAL}",
    ),
    Shown(
        "long-sequences",
        "Long sequences",
        "Two microbatches of eight are two and three times as long as the others. Each delays all "
        "stages in turn.",
        f"{_PLANT} --lengths 1 1 3 1 1 2 1 1 {_USUAL}",
    ),
    Shown(
        "slow-link",
        "A slow link",
        "Transfers between stages 1 and 2 take 20 times as long as between other stages.",
        f"{_PLANT} --slow-link 1 --slow-link-factor 20 --iterations 4 --jitter 0.02 "
        "--transfer-ns 60000",
    ),
    Shown(
        "late-host",
        "A late host",
        "The process of stage 2 launches every forward 0.6 ms after its input is ready.",
        f"{_PLANT} --late-stage 2 --late-ns 600000 {_USUAL}",
    ),
    Shown(
        "gpipe",
        "GPipe",
        "All forwards, then all backwards: the textbook bubble of (p-1)/(m+p-1), with the "
        "activations of all microbatches in memory.",
        f"{_PLANT} --schedule gpipe --iterations 3 --jitter 0.02",
    ),
    Shown(
        "zb-v",
        "ZB-V",
        "Two chunks per GPU in the shape of a V, and backwards split into B and W. W fills the "
        "idle time of 1F1B.",
        f"{_PLANT} --recipe zb-v",
    ),
    Shown(
        "dualpipe",
        "DualPipe",
        "Microbatches enter at both ends of the pipeline and cross in its middle.",
        f"{_PLANT} --schedule dualpipe --stages 8 --microbatches 20 --iterations 2 --jitter 0.02 "
        "--iteration-ranges",
    ),
    Shown(
        "1024-ranks",
        "1,024 ranks",
        "64 replicas of 16 stages on 128 hosts, as a table of operations. Outputs show the "
        "distribution over ranks, and the outliers.",
        "python -m scripts.benchmark.ranks 1024 --kinds told --folder",
        "1024-told/run",
    ),
)


def terminal(folder: Path, command: str) -> str:
    """Run a bubbleviz command in a folder, and return its output as HTML.

    Raises:
        CalledProcessError: The command fails.
    """
    words = [sys.executable, "-m", "bubbleviz", *shlex.split(command)[1:]]
    variables = {"COLUMNS": str(_WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), legacy_windows=False)
    console.print(Text.from_ansi(done.stdout), soft_wrap=True)
    code = console.export_html(inline_styles=True, code_format="{code}", theme=_THEME)
    # In Markdown, a blank line would end the block.
    lines = "\n".join(line or " " for line in code.rstrip().splitlines())
    return f'<pre class="terminal" tabindex="0">{lines}</pre>'


def write(runs: Path, docs: Path, entries: Sequence[Shown] = RUNS) -> Iterator[str]:
    """Write the runs and their pages, and yield the name of each finished run.

    Args:
        runs: Folder for the runs.
        docs: Folder for the site's pages.
        entries: Runs to show.
    """
    pages = docs / "gallery"
    pages.mkdir(parents=True, exist_ok=True)
    for one in entries:
        folder = runs / one.name
        folder.mkdir(parents=True, exist_ok=True)
        _write_profiles(one, folder)
        run = f"{one.name}/"
        command = f"bubbleviz analyze {run} {one.options}-o {one.name}.svg -o {one.name}.html"
        screen = terminal(runs, f"{command} --force")
        for suffix in (".svg", ".html"):
            shutil.move(runs / f"{one.name}{suffix}", pages / f"{one.name}-report{suffix}")
        _write_page(one, command, screen, pages)
        yield one.name
    (pages / "index.md").write_text(_format_index(entries), encoding="utf-8")


def _write_profiles(run: Shown, folder: Path) -> None:
    """Write the profiles of a run into its folder."""
    temporary = folder.with_name(f".{folder.name}")
    words = [*shlex.split(run.planted), str(temporary)]
    words[0] = sys.executable
    # The folder comes first, because an option with several values would read it as a value.
    words = [*words[:2], str(temporary), *words[2:-1]] if words[1].endswith(".py") else words
    subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    shutil.rmtree(folder)
    shutil.move(temporary / run.run if run.run else temporary, folder)
    shutil.rmtree(temporary, ignore_errors=True)


def _write_page(run: Shown, command: str, screen: str, pages: Path) -> None:
    """Write the page of a run.

    Args:
        run: The run.
        command: Command that analyzes the run.
        screen: Output of the command as HTML.
        pages: Folder for the pages.
    """
    words = run.planted.split(maxsplit=2)
    planted = (
        f"{words[0]} {words[1]} {run.name}/ {words[2]}"
        if words[1].endswith(".py")
        else f"{run.planted} {run.name}/"
    )
    text = f"""# {run.title}

{run.text}

    {command}

{screen}

<div class="picture" markdown="span">[![{html.escape(run.title)}: operations of each stage to \
scale]({run.name}-report.svg)]({run.name}-report.svg)</div>

[Open the interactive page]({run.name}-report.html){{ .md-button }}

The run is synthetic, so its fault is known exactly. In a clone, this command generates it:

    {planted}
"""
    (pages / f"{run.name}.md").write_text(text, encoding="utf-8")


def _format_index(entries: Sequence[Shown]) -> str:
    """Return the page that lists all runs with their pictures."""
    cards = "\n".join(
        f'<a href="{entry.name}.html"><img src="{entry.name}-report.svg" alt="">'
        f"<strong>{entry.title}</strong>{entry.text}</a>"
        for entry in entries
    )
    return f"""# Gallery

Nine synthetic runs, each with one fault or schedule. The build of this site generates them and runs
bubbleviz on them: every number, picture and page is the output of the command above it.

<div class="gallery">
{cards}
</div>
"""
