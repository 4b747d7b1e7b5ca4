"""Makes the documents that the commands ``inspect`` and ``conventions`` print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz.conventions.convention import Convention
from bubbleviz.model.profile import get_pid
from bubbleviz.model.texts import format_count, list_first, replace_unprintable, to_one_line
from bubbleviz.render.document import Block, HangingLines, Sentence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from bubbleviz.interpret.inspection import Inspection
    from bubbleviz.model.profile import Device

#: Maximum number of devices, and of range names, listed on one screen.
_DEVICES, _SHAPES = 3, 4
#: Maximum number of similar files to name.
_MAX_SIMILAR = 8
#: Matches a number in a warning of a profiler.
_NUMBER = re.compile("[0-9]+")
#: Singular forms of row names whose plural is not simply formed with an "s".
_SINGULAR = {
    "kernels and instructions": "kernel or instruction",
    "copies": "copy",
    "copies and memsets": "copy or memset",
    "copies and fills": "copy or fill",
    "CUDA graphs traced as a whole": "CUDA graph traced as a whole",
}


def describe_inspection(
    inspection: Inspection,
    paths: str,
    conventions_of_run: Collection[str],
    *,
    everything: bool = True,
) -> Iterator[Block]:
    """Yield the blocks that ``inspect`` prints for a profile.

    Args:
        inspection: Inspection of the profile.
        paths: Paths of all profiles given to the command, quoted for a shell.
        conventions_of_run: Names of the conventions followed by any of the run's profiles.
        everything: Whether to print complete lists. Otherwise lists are shortened to one screen.
    """
    if inspection.is_table:
        yield from _describe_table(inspection)
        return
    devices, shapes = (None, None) if everything else (_DEVICES, _SHAPES)

    contents, source = inspection.contents, inspection.contents.source
    facts = [*_list_facts(inspection)]
    if not everything:
        facts.append(("rows", _format_row_counts(contents.tables)))
    yield Sentence("", lead=to_one_line(source.path, 200))
    yield HangingLines([(f"  {label:<13}", fact) for label, fact in facts])
    noun = "GPU" if source.on_host else source.device
    yield HangingLines(
        [_describe_device(device, noun, uuid=everything) for device in contents.devices[:devices]]
    )
    yield from _count_unlisted(len(contents.devices), devices)
    if everything:
        yield from _list_row_counts(inspection, "no table")
    nvtx = source.format == "nsys"
    yield Sentence("NVTX convention" if nvtx else "Convention", style="bold")
    yield HangingLines([("  ", line.strip()) for line in _list_conventions(inspection)])
    yield Sentence("Most frequent range names in a sample (# stands for numbers)", style="bold")
    frequent = [f"  {count:>12,}  {to_one_line(name, 80)}" for name, count in inspection.shapes]
    yield Sentence("\n".join(frequent[:shapes]) or "  none")
    yield from _count_unlisted(len(inspection.shapes), shapes)
    yield from _describe_next_step(inspection, (*inspection.missing, *inspection.candidates))
    if inspection.suggestion:
        conventions = " ".join(
            f"--convention {name}" for name in (*conventions_of_run, "mine.toml")
        )
        yield Sentence("Draft convention: check it, then measure with it", style="bold")
        yield Sentence(
            f"  bubbleviz inspect {paths} -o mine.toml\n  bubbleviz analyze {paths} {conventions}",
            is_preformatted=True,
        )
        yield Sentence("\n".join(_describe_trial(inspection)))
        if everything:
            # Users may save the printed text to a file, so lines are neither wrapped nor truncated.
            lines = map(replace_unprintable, inspection.suggestion.splitlines())
            yield Sentence("\n" + "\n".join(lines) + "\n", is_preformatted=True)


def _list_facts(inspection: Inspection) -> Iterator[tuple[str, str]]:
    """Yield (label, text) pairs that describe where and how a profile was recorded.

    The facts are the format with its versions, the host and the processes. The reader and the
    profiler's warnings are yielded if there are any.
    """
    contents, source = inspection.contents, inspection.contents.source
    version = f" {source.nsys_version or 'unknown'}" if source.format == "nsys" else ""
    versions = f"{source.format}{version}, schema {source.schema_version or 'none'}"
    yield "recorded by", to_one_line(versions, 60)
    yield "host", to_one_line(source.host if source.host_known else "not recorded", 60)
    pids = ", ".join(str(get_pid(process)) for process in contents.processes)
    yield "processes", to_one_line(pids or "none with kernels", 100)
    if contents.reader:
        yield "read by", contents.reader
    if contents.warnings:
        yield f"{source.format} warned", to_one_line(" ".join(contents.warnings), 300)


def _format_row_counts(tables: Mapping[str, int | None]) -> str:
    """Return the row counts of all tables as text, such as "1,024 kernels, 12 copies".

    Tables whose number of rows is unknown are left out.

    Args:
        tables: Number of rows of each table, or None if unknown, keyed by the plural name of its
            rows.
    """
    return ", ".join(
        format_count(count, _SINGULAR.get(rows, rows.removesuffix("s")), rows)
        for rows, count in tables.items()
        if count is not None
    )


def make_kind_key(inspection: Inspection) -> tuple[object, ...]:
    """Return a key that is equal for similar files.

    Similar files have the same format, versions, matching conventions and problems. Warnings of the
    profiler may differ in counts. Only the first of several similar files is shown in full.
    """
    source = inspection.contents.source
    conventions = tuple(evidence.convention for evidence in inspection.evidence)
    warnings = tuple(_NUMBER.sub("#", text) for text in inspection.contents.warnings)
    problems = (*inspection.missing, *inspection.candidates, *warnings)
    return source.format, source.nsys_version, source.schema_version, conventions, problems


def list_similar_files(similar: Sequence[Inspection]) -> Iterator[Block]:
    """Yield a note that lists any files similar to a printed file."""
    if similar:
        names = [to_one_line(Path(own.contents.source.path).name, 60) for own in similar]
        count = format_count(len(similar), "similar file")
        yield Sentence(f"and {count} (-v): {list_first(names, _MAX_SIMILAR)}\n", style="dim")


def _describe_table(inspection: Inspection) -> Iterator[Block]:
    """Yield the blocks that ``inspect`` prints for a table of operations or a recording.

    The blocks contain the path, the file type and further facts, row counts, operation counts by
    phase, and the next step.
    """
    contents = inspection.contents
    kind = contents.source.format
    text = f"\n  a {contents.noun}{'' if kind == contents.noun else f' ({kind})'}"
    text += "".join(f"\n  {what:<12} {to_one_line(fact, 100)}" for what, fact in contents.facts)
    yield Sentence(text, lead=to_one_line(contents.source.path, 200))
    yield from _list_row_counts(inspection, "not given")
    for phase, count in contents.candidates.items():
        yield Sentence(f"  {phase:<30}{count:>12,}")
    yield from _describe_next_step(inspection, inspection.missing)


def _list_row_counts(inspection: Inspection, unknown: str) -> Iterator[Block]:
    """Yield one line per table with its row count, or ``unknown`` if it is not known."""
    yield Sentence("Rows", style="bold")
    for table, count in inspection.contents.tables.items():
        rows = unknown if count is None else f"{count:,}"
        yield Sentence(f"  {table:<30}{rows:>12}")


def _describe_next_step(inspection: Inspection, missing: Iterable[str]) -> Iterator[Block]:
    """Yield lines that say whether ``analyze`` can measure the profile and what is missing."""
    yield Sentence("Next", style="bold")
    verdict = f"analyze {'can' if inspection.analyzable else 'cannot'} compute bubble ratios"
    yield HangingLines(
        [*(("  ", line) for line in (verdict, *map(replace_unprintable, missing))), ("", "")]
    )


def _describe_device(device: Device, noun: str, *, uuid: bool) -> tuple[str, str]:
    """Return the (lead, text) of the line that describes a device.

    Args:
        device: The device.
        noun: Word to use for the device, such as "GPU".
        uuid: Whether to include the UUID of the device.
    """
    text = to_one_line(device.name, 60)
    text += f", {to_one_line(device.uuid, 60)}" if uuid and device.uuid else ""
    if device.pid is None:
        return f"  {noun} {device.device_id}: ", text
    return f"  {noun} {device.device_id} ", f"of process {device.pid}: {text}"


def _count_unlisted(count: int, max_listed: int | None) -> Iterator[Block]:
    """Yield a note with the number of entries that are not listed, if there are any.

    Args:
        count: Number of entries.
        max_listed: Maximum number of listed entries, or None if all are listed.
    """
    if max_listed is not None and count > max_listed:
        yield Sentence(f"  and {count - max_listed:,} more (-v)", style="dim")


def _describe_trial(inspection: Inspection) -> Iterator[str]:
    """Yield lines with the result of a trial measurement that uses the draft convention.

    The lines contain the operation counts by phase, the attributed share of compute time, and the
    headline. Yields nothing if no convention was drafted.
    """
    trial = inspection.trial
    if trial is not None:
        counts = ", ".join(f"{count:,} {phase}" for phase, count in trial.operations)
        yield f"  tried on this profile: {counts}"
        yield f"  attributed: {100 * trial.attributed:.1f} % of compute-kernel time"
        yield f"  result for this file: {to_one_line(trial.headline, 400)}"


def describe_conventions(conventions: Iterable[Convention]) -> Iterator[Block]:
    """Yield the blocks that ``conventions`` prints: each convention with its examples."""
    for convention in conventions:
        yield Sentence(convention.name, style="bold")
        examples = "\n".join(f"    {to_one_line(example, 100)}" for example in convention.examples)
        yield Sentence(f"  {convention.summary}\n{examples}\n")


def _list_conventions(inspection: Inspection) -> Iterator[str]:
    """Yield one line per matching convention, with range counts and examples.

    If no convention matches, yield a single line that says so.
    """
    if not inspection.evidence:
        yield "  no built-in convention matches these ranges"
    for evidence in inspection.evidence:
        counts = [f"{count:,} {phase}" for phase, count in evidence.phases]
        counts += [format_count(evidence.iterations, "iteration")] if evidence.iterations else []
        examples = ", ".join(to_one_line(e, 40) for e in evidence.examples)
        note = (
            "; these are parts of operations from another convention" if evidence.parts_left else ""
        )
        yield f"  {evidence.convention}: {', '.join(counts)} (such as {examples}){note}"
