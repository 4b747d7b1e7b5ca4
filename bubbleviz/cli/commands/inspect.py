"""``bubbleviz inspect``: a first look at profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bubbleviz.cli.help import ALL_DETAILS, argument, tables_of
from bubbleviz.cli.options import CONVENTIONS, command
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import complain, show
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.model.private_names import anonymous, hide, scope
from bubbleviz.render.document import Sentence
from bubbleviz.sources.paths import find_profiles, unreadable_profile

if TYPE_CHECKING:
    from bubbleviz.analyses.bundle import Bundle


@command({"report": "what reproduces a wrong number, without names"}, {".zip": "report"})
def inspect(
    profiles: list[str] = argument("PROFILES...", "Profiles, or directories of them."),
    convention: list[str] | None = CONVENTIONS,
    details: list[str] | None = ALL_DETAILS,
    *,
    outputs: Outputs,
) -> None:
    """Show what a profile holds, names and lacks.

    --report measures the run of all profiles, and writes its operations and ratios, to be sent with
    a report of a wrong number: no names of ranges, kernels, hosts or files are in it.
    """
    everything = bool(tables_of(details))
    if outputs.formats:
        _write_bundle(profiles, convention or (), outputs)
        return
    files = find_profiles(profiles)
    from bubbleviz.analyses.inspection import inspect as inspect_profile
    from bubbleviz.cli.overview import inspection_parts

    unreadable: list[InputError | ProfileError] = []
    for file in files:
        try:
            inspection = inspect_profile(file.path, convention=convention or ())
        except (InputError, ProfileError) as error:
            if file.named:
                raise
            unreadable.append(error)
        else:
            show(inspection_parts(anonymous(inspection), everything=everything))
    if len(unreadable) == len(files):
        raise unreadable[0]
    for reason in map(str, unreadable):
        complain(unreadable_profile(reason).sentence, 0)


def _write_bundle(profiles: list[str], convention: Sequence[str], outputs: Outputs) -> None:
    """Measure a run, and write what reproduces its numbers."""
    from bubbleviz.analyses.bundle import bundle
    from bubbleviz.api import analyze

    inputs = [own.path for own in find_profiles(profiles)]
    outputs.check(inputs)
    # Names are hidden in what is sent; messages are for who sends it.
    with scope():
        hide()
        made = bundle(anonymous(analyze(profiles, convention=convention)), analyze)
    outputs.deliver(lambda *_: made.content, lambda: _say(made, *outputs.formats), inputs=inputs)


def _say(made: Bundle, file: str, *_: str) -> None:
    """Print what is in a bundle, and which numbers come out of it otherwise."""
    ratios = ", ".join(made.measured)
    show(
        [
            Sentence(
                f"{file} holds operations and ratios ({ratios}), and no names; look into it, too"
            )
        ]
    )
    if made.differing:
        complain(
            f"{', '.join(made.differing)}: the bundle gives another number than the profiles, so "
            "what is wrong lies in how they are read; say which profiler wrote them",
            0,
        )
