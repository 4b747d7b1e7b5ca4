"""The commands whose outputs are compared, and their inputs.

A case is one or more commands that run in the same new folder. The folder contains links to the
inputs (``in``), the recordings of the tree (``rec``) and real files (``real``). Paths in commands
are relative to the folder, so commands and messages are the same for both trees. Most profiles are
read by a single process (``-j 1``), which is cheaper and must give the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Formats that ``analyze`` writes for every input.
#: The other formats take longer.
_COMMON_FORMATS = (
    *("svg", "panels.svg", "html", "json", "csv", "bubbles.csv", "parquet", "md", "tex", "txt"),
    "trace.json",
)
#: All formats of ``analyze``. Each format is also written by a separate command, because a single
#: command for all formats fails if one tree does not know a format.
_FORMATS = (
    *(*_COMMON_FORMATS, "pdf", "png", "chunks.svg", "memory.svg", "slowdowns.svg", "pftrace"),
    *("bubbles.parquet", "iterations.parquet"),
)
#: All formats of ``idle``, each of which is also written by a separate command.
_IDLE_FORMATS = ("svg", "pdf", "png", "html", "json", "csv", "md", "txt")
#: Inputs for which all formats and options are tried.
_MAIN_INPUTS = ("fixtures/1f1b", "fixtures/zb-v", "kineto/memory", "nsys/replicas")
#: Options of ``analyze``, keyed by case name.
_OPTIONS = {
    "what-if": "--what-if",
    "what-if-memory": "--what-if --memory --memory-limit 80GB -o r.json",
    "memory": "--memory -v -o r.json -o r.csv -o r.html -o r.panels.svg -o r.trace.json",
    "anonymous": "--anonymous -v -o r.html -o r.json -o r.csv -o r.svg -o r.trace.json",
    "causes": "--causes --critical-path --communication -o r.svg -o r.panels.svg",
    "memory-plot": "--what-if --memory -q -o r.memory.svg",
    "heat-map": "--heat-map -o r.svg",
    "paper": "--style paper --width 89mm -o r.svg -o r.pdf",
    "rows-stage": "--rows stage -o r.svg",
    "rows-spread": "--rows spread -o r.svg",
    "iterations": "--iteration all -o r.svg -o r.txt -o r.html",
    "selection": "--ranks 0-1 --iteration 1 -o r.svg -o r.csv -o r.html",
    "stages": "--stages 1 -o r.svg -o r.trace.json",
    "skip": "--skip 1 -v -o r.json",
    "window": "--window iteration:1-1 -v -o r.json",
    "time-window": "--window time:9s-9.06s -v -o r.json",
    "flops": "--flops 1e15/989e12 -v -o r.json",
    "align-utc": "--align utc -v -o r.json",
    "align-none": "--align none -v -o r.json",
    "align-causal": "--align causal -v -o r.json",
    "same-clock": "--same-clock node0,node1 -v -o r.json",
    "order": "--order 1,0,2,3 -v -o r.json",
    "parallel": "--parallel tp=1,pp=4,dp=1 -v -o r.json",
    "no-cross-thread": "--no-cross-thread -v -o r.json",
    "convention": "--convention zero-bubble -v -o r.json",
    "named-options": "--svg r.svg --json r.json --csv r.csv --html r.html --force",
    "jobs": "--jobs 2 -v -o r.json",
}
#: Inputs whose saved reports are read by other commands.
_REPORTED = (
    *("in/fixtures/1f1b", "in/fixtures/zb-v", "in/nsys/interleaved", "in/nsys/replicas"),
    *("in/nsys/slow-stage", "in/nsys/clock-errors", "in/kineto/memory", "in/nsys/inference"),
    *("in/tables/slow-rank.csv", "in/tables/uneven-microbatches.csv", "in/tables/slow-link.csv"),
    "real/cases/pipemorph-zb-2_3-20ms.csv.gz",
)
#: Commands that read a saved report, keyed by case name.
_OF_REPORT = {
    "plan": "plan report.json -o p.csv -o p.json -o p.svg",
    "plan-split": "plan report.json --backward split -m 6 -o p.csv -o p.comms.csv",
    "plan-fused": "plan report.json --backward fused --memory-limit none -o p.csv",
    "plan-file": "plan report.json -o p.zb.json",
    "plan-memory": "plan report.json -o p.memory.svg",
    "simulate": "simulate --from report.json --schedule 1f1b,zb-h1,gpipe -m 4,8 -o s.json",
    "gate-limit": "gate report.json --max-bubble schedule=5% --max-time 1ms -o g.md -o g.json",
    "gate-baseline": "gate report.json --baseline report.json --promised-by report.json",
    "simulate-drawn": "simulate --from report.json --schedule 1f1b,zb-h1 -o s.svg -o s.tex",
    "compare": "compare report.json report.json -v -o c.md -o c.json",
    "compare-drawn": "compare report.json report.json -o c.svg -o c.tex",
    "draw": "analyze report.json -o d.svg -o d.html -o d.tex",
    "copy": "analyze report.json --anonymous -o d.json",
    "draw-paper": "analyze report.json --style paper --width 89mm --causes -o d.svg -o d.pdf",
    "layout": "layout report.json --layers-per-stage 4 -o l.json -o l.csv",
}
#: One of two traces of the same run.
_SAMPLED = "real/kineto/hta_sampled_rank-{}.json.gz"
#: Cases that have their own inputs or no inputs.
_OTHERS = {
    "overview": ("--help", "--version", "schedules", "conventions", "guide"),
    "interactive/mcp": ("mcp in/fixtures",),
    "interactive/view": ("view in/fixtures/1f1b -j 1",),
    "refused": (
        *("analyze in/nothing", "idle in/nothing", "nonsense", "analyze", "analyze in/layers.csv"),
        *("analyze in/fixtures/1f1b -o r.xyz", "analyze in/fixtures/1f1b --nonsense"),
    ),
    "simulate/files": (
        "simulate --schedule 1f1b -p 4 -m 8 --tf 9 --tb 9 --tw 9 -o s.json -o s.svg -o s.csv",
        "simulate --plan s.csv --tf 9 --tb 9 --tw 9 --tcomm 1",
        "simulate --schedule 1f1b -p 4 -m 8 --tf 9 --tb 9 --tw 9 -o s.pdf -o s.png",
        "simulate --schedule zb-h1 -p 4 -m 8 --tf 9 --tb 9 --tw 9 -o s.comms.csv",
        "simulate --schedule zb-h1 -p 4 -m 8 --tf 9 --tb 9 --tw 9 -o s.tex",
        "simulate --schedule zb-h1 -p 4 -m 8 --tf 9 --tb 9 --tw 9 --style paper -o p.svg",
    ),
    "simulate/panels": (
        "simulate --schedule 1f1b,zb-h1,zb-v -p 4 -m 8 --tf 9 --tb 9 --tw 9 -o s.svg -o s.tex",
        "simulate --schedule 1f1b,zb-h1 -p 4 -m 8 --tf 9 --tb 9 --tw 9 -o s.pdf -o s.png",
        "simulate --schedule 1f1b -p 4 -m 4,8 --tf 9 --tb 9 --tw 9 --style paper -o p.svg",
    ),
    "simulate/sizes": (
        "simulate --schedule zb-h1,1f1b -p 4,8 -m 8,16 --tf 1 --tb 1 --tw 1 --tcomm 0.1",
        "simulate --schedule zb-v -p 4 -m 8 --tf 1 --tb 1 --tw 1 --memory-limit 3",
        "simulate --schedule interleaved-1f1b -p 4 -m 8 --tf 1,1,1,2 --tb 2 --tw 1",
    ),
    "simulate/transports": tuple(
        f"simulate --schedule 1f1b -p 4 -m 8 --tf 9 --tb 9 --tw 9 --tcomm 2 --transport {name}"
        for name in ("streams", "buffered", "rendezvous", "blocking")
    ),
    "simulate/schedules": tuple(
        f"simulate --schedule {name} -p 4 -m 8 --tf 10 --tb 11 --tw 9 --tcomm 1 -o {name}.csv"
        for name in (
            *("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "zb-1p", "zb-2p"),
            *("v-half", "v-min", "interleaved-zb", "dualpipe", "chimera"),
        )
    ),
    "serving": (
        "analyze in/tables/serving -j 1 -q -o r.chunks.svg",
        "analyze in/tables/serving -j 1 --heat-map -o r.svg -v operations",
    ),
    "layout/table": (
        "layout --layers in/layers.csv -p 4 -m 8 -o l.json -o l.csv -o l.svg",
        "layout --layers in/layers.csv -p 4 -m 8 --schedule zb-v --memory-limit 12",
        "layout --layers in/layers.csv -p 4 -m 8 -o l.pdf -o l.png",
        "layout --layers in/layers.csv -p 4 -m 8 -o l.memory.svg",
    ),
    "layout/nsys": ("layout in/nsys/layers -j 1 -o l.json -o l.csv -o l.svg",),
    "layout/kineto": ("layout in/kineto/modules -j 1 -o l.json -o l.csv -o l.svg",),
    "compare/slow-stage": (
        "compare in/nsys/plain in/nsys/slow-stage -j 1 -v -o c.md -o c.json -o c.csv -o c.svg",
        "compare in/nsys/plain in/nsys/slow-stage -j 1 --fail-if-worse -o c.pdf -o c.png",
        "gate in/nsys/slow-stage -j 1 --baseline in/nsys/plain",
    ),
    "compare/schedules": (
        "compare in/nsys/plain in/nsys/zb-h1 in/nsys/zb-v -j 1 -v -o c.svg -o c.tex",
        "compare in/nsys/plain in/nsys/zb-h1 -j 1 --style paper --width 89mm -o p.svg -o p.pdf",
    ),
    "compare/idle": (
        "idle in/kineto/world -j 1 -q -o i.json",
        "compare i.json in/kineto/world -j 1 -v -o c.tex -o c.json",
        "compare i.json i.json -o c.svg",
    ),
    "compare/jobs": ("compare in/tables/slow-rank.csv in/tables/slow-link.csv -j 1 -v -o c.json",),
    "analyze/planned": (
        "simulate --schedule 1f1b -p 4 -m 8 --tf 9 --tb 9 --tw 9 -o plan.csv",
        "analyze in/fixtures/1f1b -j 1 --plan plan.csv -v -o r.json",
    ),
    "analyze/two-traces": (
        f"analyze {_SAMPLED.format(0)} {_SAMPLED.format(1)} -j 1",
        f"idle {_SAMPLED.format(0)} -j 1 -v --top 3 --shortest 10",
    ),
    "pgle/against": (
        "pgle in/xla/jax.sqlite -j 1 --aggregate max -o c.pbtxt -o c.pb -o c.csv",
        "pgle in/xla/jax.sqlite -j 1 --against c.pbtxt -o e.csv",
        "pgle real/jax/jax_cpu4.xplane.pb -o j.pbtxt",
        "pgle real/jax/tracelens_jax08_attention.xplane.pb -o t.pbtxt -o t.csv",
        "pgle real/jax/jax_cpu4.xplane.pb --against real/pgle/bf16_pgle_16vm.pbtxt",
    ),
    "nccl/profiles": (
        "nccl in/nsys/replicas -j 1 -v -o n.json -o n.csv",
        "nccl in/kineto/world -j 1 -v -o k.json -o k.csv",
        "nccl real/kineto/hta_nccl_data.json.gz -j 1 -v -o h.json -o h.csv",
        "nccl real/nsys/nsys-ai_mfu_2gpu_before.sqlite -j 1 -v -o a.json -o a.csv",
    ),
}
_COMMANDS = (
    *("analyze", "inspect", "idle", "view", "watch", "nccl", "pgle", "compare", "gate", "simulate"),
    *("plan", "layout", "schedules", "conventions", "guide", "mcp"),
)


@dataclass(frozen=True)
class Case:
    """Commands that run in one folder.

    Attributes:
        name: Unique name, such as ``analyze/nsys/zb-v``.
        commands: Arguments of each command, without the name of the program.
    """

    name: str
    commands: tuple[str, ...]

    @property
    def is_interactive(self) -> bool:
        """Whether the command answers requests while it runs."""
        return self.name.startswith("interactive/")

    @property
    def needs_real_files(self) -> bool:
        """Whether a command reads files that the project does not ship."""
        return any("real/" in command for command in self.commands)


def list_cases(inputs: Path, real: Path | None) -> list[Case]:
    """Return all cases.

    Args:
        inputs: Folder that contains the synthetic inputs.
        real: Folder that contains real files, or None to leave out the cases that read real files.
    """
    paths = _list_runs(inputs, "in") + (_list_runs(real, "real") if real else [])
    cases = [case for path in paths for case in _list_run_cases(path)]
    for path in _list_files(inputs, real):
        cases.append(Case(f"nccl/{path}", (f"nccl {path} -v -o n.json -o n.csv", path)))
    for name in _MAIN_INPUTS:
        cases += _list_main_input_cases(name)
    for path in _REPORTED:
        report = f"analyze {path} -j 1 -q -o report.json"
        for name, command in _OF_REPORT.items():
            cases.append(Case(f"{name}/{path}", (report, command)))
    for file in sorted((inputs / "operations").glob("*.json")):
        cases += _list_recording_cases(f"rec/{file.stem}")
    cases += [Case(name, commands) for name, commands in _OTHERS.items()]
    cases += [Case(f"help/{name}", (f"{name} --help",)) for name in _COMMANDS]
    return [case for case in cases if real or not case.needs_real_files]


def _list_runs(folder: Path, link: str) -> list[str]:
    """Return the paths of the runs in an input folder, relative to the folder of a case."""
    return [
        f"{link}/{kind}/{path.name}"
        for kind in sorted(path.name for path in folder.iterdir() if path.is_dir())
        if kind not in {"operations", "nccl", "pgle"}
        for path in sorted((folder / kind).iterdir())
        if path.name.endswith(_SUFFIXES) or path.is_dir()
    ]


def _list_files(inputs: Path, real: Path | None) -> list[str]:
    """Return the paths of NCCL event files."""
    files = [f"in/nccl/{path.name}" for path in sorted((inputs / "nccl").iterdir())]
    if real:
        files += [f"real/nccl/{path.name}" for path in sorted((real / "nccl").iterdir())]
    return files


_SUFFIXES = (
    *(".sqlite", ".rpd", ".csv", ".csv.gz", ".json", ".json.gz", ".parquet", ".arrow"),
    ".xplane.pb",
)


def _list_run_cases(path: str) -> Iterator[Case]:
    files = " ".join(f"-o r.{suffix}" for suffix in _COMMON_FORMATS)
    yield Case(f"analyze/{path}", (f"analyze {path} -j 1 {files} -v",))
    yield Case(f"inspect/{path}", (f"inspect {path} -v", f"inspect {path} -o bundle.zip"))
    yield Case(f"idle/{path}", (f"idle {path} -j 1 -o i.json -o i.csv -o i.svg -o i.html -v",))


def _list_main_input_cases(name: str) -> Iterator[Case]:
    """Yield the cases for an input that is run with all output formats and options."""
    path = f"in/{name}"
    for suffix in _FORMATS:
        yield Case(f"format/{suffix}/{name}", (f"analyze {path} -j 1 -q -o r.{suffix}",))
    for option, words in _OPTIONS.items():
        yield Case(f"option/{option}/{name}", (f"analyze {path} -j 1 {words}",))
    yield Case(f"first-screen/{name}", (f"analyze {path} -j 1", path))
    yield Case(f"draft/{name}", (f"inspect {path} -o draft.toml", f"inspect {path} --anonymous"))
    for suffix in _IDLE_FORMATS:
        yield Case(f"idle-format/{suffix}/{name}", (f"idle {path} -j 1 -q -o i.{suffix}",))
    yield Case(
        f"idle-options/{name}", (f"idle {path} -j 1 --anonymous --step Optimizer -v -o i.json",)
    )


def _list_recording_cases(path: str) -> Iterator[Case]:
    """Yield the cases for a recording: those for any run, and one that watches the recording."""
    yield from _list_run_cases(path)
    follow = f"watch {path} --plain --interval 0.1 --stop-after 0.2"
    commands = (
        f"{follow} --anonymous",
        f"{follow} --jsonl w.jsonl --tensorboard tensorboard --max-bubble schedule=1%",
    )
    yield Case(f"watch/{path}", commands)
