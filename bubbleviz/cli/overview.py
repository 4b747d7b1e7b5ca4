"""What ``inspect`` and ``conventions`` print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz.conventions.convention import Convention
from bubbleviz.model.profile import get_pid
from bubbleviz.model.texts import format_count, list_first, replace_unprintable, to_one_line
from bubbleviz.render.document import Block, HangingLines, Sentence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from bubbleviz.interpret.inspection import Inspection
    from bubbleviz.model.profile import Device

#: Devices and names of ranges on one screen.
_DEVICES, _SHAPES = 3, 4
#: Maximum number of similar files that are named.
_LIKE = 8
#: Singular of the names of rows; all other names lose their final "s".
_SINGULAR = {
    "kernels and instructions": "kernel or instruction",
    "copies": "copy",
    "copies and memsets": "copy or memset",
    "copies and fills": "copy or fill",
    "CUDA graphs traced as a whole": "CUDA graph traced as a whole",
}


def inspection_parts(
    inspection: Inspection, paths: str, known: Collection[str], *, everything: bool = True
) -> Iterator[Block]:
    """Yield what ``inspect`` prints.

    Args:
        inspection: of one profile.
        paths: of all profiles, as a shell reads them.
        known: conventions that others of them follow.
        everything: whether to list all that is listed, or what fits one screen.
    """
    if inspection.is_table:
        yield from _table_parts(inspection)
        return
    devices, shapes = (None, None) if everything else (_DEVICES, _SHAPES)

    contents, source = inspection.contents, inspection.contents.source
    version = f" {source.nsys_version or 'unknown'}" if source.format == "nsys" else ""
    versions = f"{source.format}{version}, schema {source.schema_version or 'none'}"
    host = source.host if source.host_known else "not recorded"
    facts = [("recorded by", to_one_line(versions, 60)), ("host", to_one_line(host, 60))]
    pids = map(get_pid, contents.processes)
    facts.append(("processes", to_one_line(", ".join(map(str, pids)) or "none with kernels", 100)))
    if contents.reader:
        facts.append(("read by", contents.reader))
    if not everything:
        rows = (
            format_count(count, _SINGULAR.get(rows, rows.removesuffix("s")), rows)
            for rows, count in contents.tables.items()
            if count is not None
        )
        facts.append(("rows", ", ".join(rows)))
    yield Sentence(
        "".join(f"\n  {what:<13}{fact}" for what, fact in facts), lead=to_one_line(source.path, 200)
    )
    noun = "GPU" if source.on_host else source.device
    yield HangingLines(
        [_device_line(device, noun, uuid=everything) for device in contents.devices[:devices]]
    )
    yield from _more(len(contents.devices), devices)
    if everything:
        yield from _rows(inspection, "no table")
    nvtx = source.format == "nsys"
    yield Sentence("NVTX convention" if nvtx else "Convention", style="bold")
    yield HangingLines([("  ", line.strip()) for line in _convention_lines(inspection)])
    yield Sentence("Most frequent range names in a sample (# stands for numbers)", style="bold")
    frequent = [f"  {count:>12,}  {to_one_line(name, 80)}" for name, count in inspection.shapes]
    yield Sentence("\n".join(frequent[:shapes]) or "  none")
    yield from _more(len(inspection.shapes), shapes)
    yield from _next(inspection, (*inspection.missing, *inspection.candidates))
    if inspection.suggestion:
        conventions = " ".join(f"--convention {name}" for name in (*known, "mine.toml"))
        yield Sentence("Draft of a convention: check it, then measure with it", style="bold")
        yield Sentence(
            f"  bubbleviz inspect {paths} -o mine.toml\n  bubbleviz analyze {paths} {conventions}",
            is_preformatted=True,
        )
        yield Sentence("\n".join(_trial_lines(inspection)))
        if everything:
            # No line is wrapped or cut: what is printed is the file to save.
            lines = map(replace_unprintable, inspection.suggestion.splitlines())
            yield Sentence("\n" + "\n".join(lines) + "\n", is_preformatted=True)


def kind_of(inspection: Inspection) -> tuple[object, ...]:
    """Return what files have in common of which one screen shows the first."""
    source = inspection.contents.source
    named = tuple(evidence.convention for evidence in inspection.evidence)
    lacks = (*inspection.missing, *inspection.candidates)
    return source.format, source.nsys_version, source.schema_version, named, lacks


def others_like_it(others: Sequence[Inspection]) -> Iterator[Block]:
    """Yield which files are like one that is shown; nothing without any."""
    if others:
        names = [to_one_line(Path(own.contents.source.path).name, 60) for own in others]
        like = f"{format_count(len(others), 'file')} like it (-v): {list_first(names, _LIKE)}\n"
        yield Sentence(f"and {like}", style="dim")


def _table_parts(inspection: Inspection) -> Iterator[Block]:
    """Yield what ``inspect`` prints of operations themselves, which tell what they are."""
    contents = inspection.contents
    kind = contents.source.format
    text = f"\n  a {contents.noun}{'' if kind == contents.noun else f' ({kind})'}"
    text += "".join(f"\n  {what:<12} {to_one_line(fact, 100)}" for what, fact in contents.facts)
    yield Sentence(text, lead=to_one_line(contents.source.path, 200))
    yield from _rows(inspection, "not given")
    for phase, count in contents.candidates.items():
        yield Sentence(f"  {phase:<30}{count:>12,}")
    yield from _next(inspection, inspection.missing)


def _rows(inspection: Inspection, unknown: str) -> Iterator[Block]:
    """Yield the rows of each table."""
    yield Sentence("Rows", style="bold")
    for what, count in inspection.contents.tables.items():
        rows = unknown if count is None else f"{count:,}"
        yield Sentence(f"  {what:<30}{rows:>12}")


def _next(inspection: Inspection, missing: Iterable[str]) -> Iterator[Block]:
    """Yield whether a profile can be analysed, and what it lacks."""
    yield Sentence("Next", style="bold")
    verdict = f"analyze {'can' if inspection.analysable else 'cannot'} compute bubble ratios"
    yield HangingLines(
        [*(("  ", line) for line in (verdict, *map(replace_unprintable, missing))), ("", "")]
    )


def _device_line(device: Device, noun: str, *, uuid: bool) -> tuple[str, str]:
    """Return a device as the lead of a line, and its text."""
    text = to_one_line(device.name, 60)
    text += f", {to_one_line(device.uuid, 60)}" if uuid and device.uuid else ""
    if device.pid is None:
        return f"  {noun} {device.device_id}: ", text
    return f"  {noun} {device.device_id} ", f"of process {device.pid}: {text}"


def _more(count: int, shown: int | None) -> Iterator[Block]:

    if shown is not None and count > shown:
        yield Sentence(f"  and {count - shown:,} more (-v)", style="dim")


def _trial_lines(inspection: Inspection) -> Iterator[str]:
    trial = inspection.trial
    if trial is not None:
        counts = ", ".join(f"{count:,} {phase}" for phase, count in trial.operations)
        yield f"  tried on this profile: {counts}"
        yield f"  attributed: {100 * trial.attributed:.1f} % of compute-kernel time"
        yield f"  of this file alone: {to_one_line(trial.headline, 400)}"


def convention_parts(conventions: Iterable[Convention]) -> Iterator[Block]:
    """Yield what ``conventions`` prints: each convention with its examples."""
    for convention in conventions:
        yield Sentence(convention.name, style="bold")
        examples = "\n".join(f"    {to_one_line(example, 100)}" for example in convention.examples)
        yield Sentence(f"  {convention.summary}\n{examples}\n")


def _convention_lines(inspection: Inspection) -> Iterator[str]:
    if not inspection.evidence:
        yield "  no built-in convention matches these ranges"
    for evidence in inspection.evidence:
        counts = [f"{count:,} {phase}" for phase, count in evidence.phases]
        counts += [format_count(evidence.iterations, "iteration")] if evidence.iterations else []
        examples = ", ".join(to_one_line(e, 40) for e in evidence.examples)
        left = "; parts of operations that another convention names"
        yield (
            f"  {evidence.convention}: {', '.join(counts)} (such as {examples})"
            f"{left if evidence.parts_left else ''}"
        )
