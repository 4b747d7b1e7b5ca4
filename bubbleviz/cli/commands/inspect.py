"""``bubbleviz inspect``: a first look at profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bubbleviz.cli.help import ALL_DETAILS, argument, tables_of
from bubbleviz.cli.options import CONVENTIONS, command
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.cli.terminal import complain, show
from bubbleviz.errors import InputError, ProfileError, UsageError
from bubbleviz.model.texts import quote_for_shell
from bubbleviz.render.document import Sentence
from bubbleviz.sources.paths import InputFile, find_profiles, make_unreadable_limitation

if TYPE_CHECKING:
    from bubbleviz.analyses.bundle import Bundle
    from bubbleviz.interpret.inspection import Inspection


@command(
    {"toml": "draft of a convention", "report": "what reproduces a wrong number, without names"},
    {".toml": "toml", ".zip": "report"},
)
def inspect(
    profiles: list[str] = argument("PROFILES...", "Profiles, or directories of them."),
    *,
    outputs: Outputs,
    convention: list[str] | None = CONVENTIONS,
    details: list[str] | None = ALL_DETAILS,
) -> None:
    """Show what a profile holds, names and lacks.

    Where no known convention names forward and backward, -o mine.toml writes a draft of one for
    analyze --convention mine.toml.

    -o run.zip measures the run of all profiles, and writes its operations and ratios, to be sent
    with a report of a wrong number: no names of ranges, kernels, groups, hosts or files are in it.
    """
    everything = bool(tables_of(details))
    if {*outputs.formats.values()} == {"report"}:
        _write_bundle(profiles, convention or (), outputs)
        return
    if "report" in outputs.formats.values():
        raise UsageError("a report is written alone; leave the other outputs out")
    files = find_profiles(profiles)
    outputs.check([*(file.path for file in files), *(convention or ())])
    from bubbleviz.cli.overview import inspection_parts, kind_of, others_like_it

    seen, unreadable = _looked_over(files, convention or ())
    given = outputs.names.text(" ".join(map(quote_for_shell, profiles)))
    named = (evidence for own in seen if own.analysable for evidence in own.evidence)
    known = {evidence.convention: "" for evidence in named if "F" in dict(evidence.phases)}

    def printed(shown: Sequence[Inspection]) -> None:
        alike: dict[tuple[object, ...], list[Inspection]] = {}
        for number, inspection in enumerate(shown):
            kind = (number,) if everything else kind_of(inspection)
            alike.setdefault(kind, []).append(inspection)
        for first, *others in alike.values():
            show(inspection_parts(first, given, known, everything=everything))
            show(others_like_it(others))

    outputs.deliver(tuple(seen), lambda shown, *_: _draft(shown), printed)
    for error in unreadable:
        outputs.names.note_error(error)
        complain(make_unreadable_limitation(error).sentence, 0, outputs.names)


def _looked_over(
    files: Sequence[InputFile], convention: Sequence[str]
) -> tuple[list[Inspection], list[InputError | ProfileError]]:
    """Return the inspections of files, and why others of directories cannot be read.

    Raises:
        BubblevizError: a file that was named cannot be read, or none can.
    """
    from bubbleviz.analyses.inspection import inspect as inspect_profile

    unreadable: list[InputError | ProfileError] = []
    seen: list[Inspection] = []
    for file in files:
        try:
            seen.append(inspect_profile(file.path, convention=convention))
        except (InputError, ProfileError) as error:
            if file.named:
                raise
            unreadable.append(error)
    if not seen:
        raise unreadable[0]
    return seen, unreadable


def _write_bundle(profiles: list[str], convention: Sequence[str], outputs: Outputs) -> None:
    """Measure a run, and write what reproduces its numbers."""
    from bubbleviz.analyses.bundle import make_bundle
    from bubbleviz.api import analyze

    outputs.check(own.path for own in find_profiles(profiles))
    report = analyze(profiles, convention=convention)
    # A bundle never contains private names; messages do, without --anonymous.
    made = make_bundle(PrivateNames(hidden=True).replaced(report), analyze)
    file = next(iter(outputs.formats))
    outputs.deliver(
        (made, file), lambda shown, *_: shown[0].content, lambda shown: _say(*shown, outputs.names)
    )


def _say(made: Bundle, file: str, names: PrivateNames) -> None:
    """Print what is in a bundle, and which numbers come out of it otherwise."""
    ratios = ", ".join(made.measured)
    show(
        [
            Sentence(
                f"{file} holds operations and ratios ({ratios}), no names; check it before sending"
            )
        ]
    )
    if made.differing:
        complain(
            f"{', '.join(made.differing)}: the bundle gives another number than the profiles, so "
            "the error is in how they are read; say which profiler wrote them",
            0,
            names,
        )


def _draft(seen: Sequence[Inspection]) -> str:
    """Return the draft that explains most of a profile.

    Raises:
        InputError: none of the profiles needs, or gives, a draft.
    """
    drafts = [(own.trial.attributed, own.suggestion) for own in seen if own.trial]
    known = next((own.contents.source.path for own in seen if own.analysable), None)
    if not drafts and known is not None:
        raise InputError(f"{known}: its names are known; run bubbleviz analyze without a draft")
    if not drafts:
        raise InputError(
            f"{seen[0].contents.source.path}: no range names forward and backward in words that "
            "give a draft; name them (bubbleviz guide annotate)"
        )
    return max(drafts, key=lambda own: own[0])[1] or ""
