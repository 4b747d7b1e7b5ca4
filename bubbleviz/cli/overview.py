"""What ``inspect`` prints: one profile at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.text.cells import clean
from bubbleviz.model.profile import pid_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from bubbleviz.conventions import Convention
    from bubbleviz.interpret.inspection import Inspection


def parts(inspection: Inspection) -> Iterator[RenderableType]:
    """Yield what to print, for any rich console."""
    from rich.text import Text

    contents, source = inspection.contents, inspection.contents.source
    head = Text(clean(source.path, 200), style="bold")
    version = f" {source.nsys_version or 'unknown'}" if source.format == "nsys" else ""
    versions = f"{source.format}{version}, schema {source.schema_version or 'none'}"
    host = source.host if source.host_known else "not recorded"
    head.append(
        f"\n  recorded by  {clean(versions)}\n  host         {clean(host)}", style="not bold"
    )
    pids = ", ".join(str(pid_of(p)) for p in contents.processes) or "none with kernels"
    head.append(f"\n  processes    {clean(pids, 100)}", style="not bold")
    yield head
    for device in contents.devices:
        seen_by = "" if device.pid is None else f" of process {device.pid}"
        uuid = f", {device.uuid}" if device.uuid else ""
        yield Text(f"  GPU {device.device_id}{seen_by}: {clean(device.name)}{clean(uuid)}")
    yield Text("Rows", style="bold")
    for table in contents.tables:
        rows = "no table" if table.rows is None else f"{table.rows:,}"
        yield Text(f"  {table.what:<30}{rows:>12}")
    yield Text("Naming", style="bold")
    yield Text("\n".join(_naming(inspection)))
    yield Text("Most frequent range names in a sample (# stands for numbers)", style="bold")
    yield Text(
        "\n".join(f"  {count:>12,}  {clean(name, 80)}" for name, count in inspection.shapes)
        or "  none"
    )
    yield Text("What can be done", style="bold")
    verdict = "analyze can give bubble ratios" if inspection.analysable else "analyze cannot run"
    yield Text("\n".join(f"  {line}" for line in (verdict, *inspection.missing)) + "\n")
    if inspection.suggestion:
        yield Text(
            "A draft of a naming, to be checked: save as mine.toml, give --convention mine.toml",
            style="bold",
        )
        # Lines are broken or cut nowhere: what is printed is the file to save.
        lines = (clean(line, None) for line in inspection.suggestion.splitlines())
        yield Text("\n".join(lines) + "\n", no_wrap=True)


def naming_parts(conventions: Iterable[Convention]) -> Iterator[RenderableType]:
    """Yield what ``conventions`` prints: the namings known, with examples."""
    from rich.text import Text

    for convention in conventions:
        yield Text(convention.name, style="bold")
        examples = "\n".join(f"    {clean(example, 100)}" for example in convention.examples)
        yield Text(f"  {convention.summary}\n{examples}\n")


def _naming(inspection: Inspection) -> Iterator[str]:
    if not inspection.evidence:
        yield "  no convention known to bubbleviz names these ranges"
    for evidence in inspection.evidence:
        told = [f"{count:,} {phase}" for phase, count in evidence.phases]
        told += [f"{evidence.iterations:,} iterations"] if evidence.iterations else []
        examples = ", ".join(clean(e, 40) for e in evidence.examples)
        left = "; parts of operations that another naming tells, left to it"
        yield (
            f"  {evidence.convention}: {', '.join(told)} (such as {examples})"
            f"{left if evidence.parts_left else ''}"
        )
