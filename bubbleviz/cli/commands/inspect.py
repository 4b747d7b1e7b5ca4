"""``bubbleviz inspect``: a first look at profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bubbleviz.cli.help import ALL_DETAILS, argument, select_tables
from bubbleviz.cli.options import CONVENTIONS, command
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.cli.terminal import print_message, show
from bubbleviz.errors import InputError, ProfileError, UsageError
from bubbleviz.model.texts import quote_for_shell
from bubbleviz.render.document import Sentence
from bubbleviz.sources.paths import InputFile, find_profiles, make_unreadable_limitation

if TYPE_CHECKING:
    from bubbleviz.analyses.bundle import Bundle
    from bubbleviz.interpret.inspection import Inspection


@command(
    {"toml": "Write a draft convention.", "report": "Write an anonymous bundle for a bug report."},
    {".toml": "toml", ".zip": "report"},
)
def inspect(
    profiles: list[str] = argument("PROFILES...", "Profiles, or directories that contain them."),
    *,
    outputs: Outputs,
    convention: list[str] | None = CONVENTIONS,
    details: list[str] | None = ALL_DETAILS,
) -> None:
    """Show what a profile contains and what is missing.

    If no known convention matches the forward and backward ranges, -o mine.toml writes a draft
    convention for analyze --convention mine.toml.

    -o run.zip measures the run and writes its operations and ratios to a bundle that you can attach
    to a bug report about a wrong number. The bundle contains no names of ranges, kernels, groups,
    hosts or files.
    """
    everything = bool(select_tables(details))
    if {*outputs.formats.values()} == {"report"}:
        _write_bundle(profiles, convention or (), outputs)
        return
    if "report" in outputs.formats.values():
        raise UsageError("-o FILE.zip cannot be combined with other outputs; remove the others")
    files = find_profiles(profiles)
    outputs.check([*(file.path for file in files), *(convention or ())])
    from bubbleviz.cli.overview import describe_inspection, list_similar_files, make_kind_key

    inspections, unreadable = _inspect_files(files, convention or ())
    paths = outputs.names.text(" ".join(map(quote_for_shell, profiles)))
    matching = (
        evidence
        for inspection in inspections
        if inspection.analyzable
        for evidence in inspection.evidence
    )
    conventions = {e.convention: "" for e in matching if "F" in dict(e.phases)}

    def print_inspections(public: Sequence[Inspection]) -> None:
        """Print the inspections. Only the first of similar files is printed unless ``everything``.

        The names of similar files follow. Private names in the inspections must have been replaced.
        """
        by_kind: dict[tuple[object, ...], list[Inspection]] = {}
        for number, inspection in enumerate(public):
            kind = (number,) if everything else make_kind_key(inspection)
            by_kind.setdefault(kind, []).append(inspection)
        for first, *similar in by_kind.values():
            show(describe_inspection(first, paths, conventions, everything=everything))
            show(list_similar_files(similar))

    outputs.deliver(tuple(inspections), lambda public, *_: _choose_draft(public), print_inspections)
    for error in unreadable:
        outputs.names.note_error(error)
        print_message(make_unreadable_limitation(error).sentence, 0, outputs.names)


def _inspect_files(
    files: Sequence[InputFile], convention: Sequence[str]
) -> tuple[list[Inspection], list[InputError | ProfileError]]:
    """Inspect files, and collect errors about unreadable files in directories.

    Args:
        files: The files.
        convention: Convention names, or paths of TOML files.

    Returns:
        inspections: One inspection per file that can be read.
        errors: One error per file that cannot be read.

    Raises:
        BubblevizError: A file named by the user cannot be read, or no file can be read.
    """
    from bubbleviz.analyses.inspection import inspect as inspect_profile

    unreadable: list[InputError | ProfileError] = []
    inspections: list[Inspection] = []
    for file in files:
        try:
            inspections.append(inspect_profile(file.path, convention=convention))
        except (InputError, ProfileError) as error:
            if file.named:
                raise
            unreadable.append(error)
    if not inspections:
        raise unreadable[0]
    return inspections, unreadable


def _write_bundle(profiles: list[str], convention: Sequence[str], outputs: Outputs) -> None:
    """Measure a run, and write a bundle that reproduces the measured numbers.

    Args:
        profiles: Paths of the run's profiles.
        convention: Convention names, or paths of TOML files.
        outputs: Outputs of the command, of which the first one is the bundle.
    """
    from bubbleviz.analyses.bundle import make_bundle
    from bubbleviz.api.analysis import analyze

    outputs.check(file.path for file in find_profiles(profiles))
    report = analyze(profiles, convention=convention)
    # A bundle never contains private names, even without --anonymous. Messages can contain them.
    run_bundle = make_bundle(PrivateNames(hidden=True).replaced(report), analyze)
    file = next(iter(outputs.formats))
    outputs.deliver(
        (run_bundle, file),
        lambda public, *_: public[0].content,
        lambda public: _describe_bundle(*public, outputs.names),
    )


def _describe_bundle(run_bundle: Bundle, file: str, names: PrivateNames) -> None:
    """Print what a bundle contains, plus a message if its ratios differ from the measured ones."""
    ratios = ", ".join(run_bundle.measured)
    contents = f"{file} contains operations and ratios ({ratios}), but no names"
    show([Sentence(f"{contents}; check the file before you send it")])
    if run_bundle.differing:
        print_message(
            f"{', '.join(run_bundle.differing)}: the number in the bundle differs from that of the "
            "profiles, so the error occurs while reading them; also report the profiler and its "
            "version",
            0,
            names,
        )


def _choose_draft(inspections: Sequence[Inspection]) -> str:
    """Return the text of the draft convention that attributes the largest share of compute time.

    Raises:
        InputError: No draft is needed, or none could be made.
    """
    drafts = [(i.trial.attributed, i.suggestion) for i in inspections if i.trial]
    paths = (i.contents.source.path for i in inspections if i.analyzable)
    analyzable_path = next(paths, None)
    if not drafts and analyzable_path is not None:
        raise InputError(
            f"{analyzable_path}: the range names are recognized, so no draft is needed; run "
            "bubbleviz analyze"
        )
    if not drafts:
        raise InputError(
            f"{inspections[0].contents.source.path}: no range name looks like a forward or "
            "backward, so no draft can be made; add ranges (bubbleviz guide annotate)"
        )
    return max(drafts, key=lambda draft: draft[0])[1] or ""
