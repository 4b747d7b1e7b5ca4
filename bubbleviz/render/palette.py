"""Colours of pictures, by phase and chunk: legible in print, in greyscale and on a dark screen.

The fills match the figures of the zero-bubble papers. Some of them are equally dark, so a phase
that would look like another in greyscale has a strip along its top or bottom edge::

    F ▇▇▇▇   B ▇▇▇▇   BW ▇▇▇▇   W ▇▇▇▇   R ▀▀▀▀   FB ▀▀▀▀
                         ▒▒▒▒     ░░░░                ▄▄▄▄

Idle time uses different hues, and each cause has its own hatch.

The chunks of a rank range from dark fills with white numbers to light fills with black numbers.
With three or more chunks, ``B`` also has a strip along its top edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from bubbleviz.model.phases import COMMUNICATION as COMMUNICATION_PHASES
from bubbleviz.model.phases import Phase

BLACK = "#000000"
WHITE = "#ffffff"

FORWARD = "#397af2"
BACKWARD_INPUT = "#3eb5bf"
BACKWARD_WEIGHT = "#298940"
BACKWARD_BOTH = "#74cdb5"
RECOMPUTE = "#c9d8fb"
PAIR = "#eef3f8"
PALE_WEIGHT = "#e0f0e7"
PALE_INPUT = "#dbf3f5"
OPTIMIZER = "#ffd966"
COMMUNICATION = "#e69138"
UNATTRIBUTED = "#a4a9b1"
OTHER_ITERATION = "#d3d7dc"
#: Colours of phases on a terminal, which has no strips. They differ in greyscale, in 256 colours
#: and in 16 colours.
TERMINAL = {
    Phase.F: "#2f7af2",
    Phase.B: "#2faac2",
    Phase.W: "#1f7f2f",
    Phase.BW: "#64d79b",
    Phase.R: "#b9c7e7",
    Phase.FB: "#134cb7",
    Phase.OPTIMIZER: OPTIMIZER,
}

#: Colours of device activities, and of host activities while the device was idle. Work of the
#: device is pale; idle time that can be avoided has strong colours. All other activities cycle
#: through ``MORE_ACTIVITIES``.
ACTIVITIES = {
    "compute": "#c6d6f5",
    "communication": "#f3c99b",
    "copies": "#bfe3df",
    "data loading": "#d62f2f",
    "tracing and compiling": "#7b4fb3",
    "waiting": "#e6b800",
    "transfer": "#0f8b8d",
    "allocation": "#8c564b",
    "launch": "#ee7f2d",
    "collective calls": "#b05c00",
    "optimizer": "#b58900",
    "API calls": "#6b7a1f",
    "operators": "#2f6fb5",
    "Python": "#4b8b3b",
    "profiler": "#3d4450",
    "blocked by communication": "#880e4f",
    "blocked by copies": "#00695c",
    "blocked by compute": "#3949ab",
    "stream or rank dependency": "#c2185b",
    "other device": "#e377c2",
    "kernel-to-kernel gaps": "#8d99a6",
    "no host trace": "#5a626c",
    "launch not recorded": "#a4a9b1",
    "page migration": "#7b3f61",
}
MORE_ACTIVITIES = ("#9a3324", "#4d7c2a", "#6a3d9a", "#a6611a", "#1b5e8c", "#b0527c")
#: Colour of the critical path.
CRITICAL = "#c2185b"
#: Colours of the scale of times: fast, usual and slow. Slower is darker, in greyscale as well.
_HEAT = ("#e4f1fb", "#c9c3ba", "#7f1d1d")

# Fraction of black in the first of several chunks, and fraction of white in the last.
_TOWARDS_BLACK = {FORWARD: 0.38, BACKWARD_INPUT: 0.36, BACKWARD_WEIGHT: 0.42, BACKWARD_BOTH: 0.42}
_TOWARDS_WHITE = {FORWARD: 0.45, BACKWARD_INPUT: 0.58, BACKWARD_WEIGHT: 0.5, BACKWARD_BOTH: 0.5}


@dataclass(frozen=True)
class Hatch:
    """The hatch of a cause of idle time: lines or dots on a square tile, in page units.

    Attributes:
        spacing: Side of the tile.
        angle: Rotation of the tile in degrees.
        line: Width of the line, or radius of the dot; 0 for neither.
        crossed: Whether a second line crosses the first.
        dots: Whether there is a dot instead of a line.
    """

    spacing: float
    angle: int = 0
    line: float = 0.8
    crossed: bool = False
    dots: bool = False

    def choose_ink(self, colour: str) -> str:
        """Return the colour of hatch lines: darker than a light colour, lighter than a dark one."""
        return (
            mix(colour, BLACK, 0.5) if measure_luminance(colour) > 0.2 else mix(colour, WHITE, 0.65)
        )


#: Colour, hatch, and closest named colour of Chrome's trace viewer, keyed by cause of idle time.
#: Work is blue, green and yellow. Idle time is grey, brown, red and purple, and hatched if the
#: medium supports it. A test checks that all causes differ from each other and from work for any
#: colour vision, and that causes next to each other in this order, and BW next to dependency,
#: differ in luma.
_IDLE = {
    "profiler": ("#1f2d2c", Hatch(4, 45, crossed=True), "black"),
    "collective": ("#746687", Hatch(4, 90), "thread_state_uninterruptible"),
    "warmup": ("#f0f8f6", Hatch(9, 45, 0.6), "thread_state_sleeping"),
    "drain": ("#cbaeed", Hatch(9, 135, 0.6), "grey"),
    "dependency": ("#d28784", Hatch(3, 135, 1.0), "cq_build_failed"),
    "host": ("#b52f1c", Hatch(5, crossed=True), "terrible"),
    "communication": ("#7e5658", Hatch(4, 45), "olive"),
    "other": ("#ffbf87", Hatch(4, 45, 0.8, dots=True), "thread_state_unknown"),
    "unknown": ("#977780", Hatch(4), "generic_work"),
    "stages": ("#780078", Hatch(6, 90, 1.6), "detailed_memory_dump"),
    "chunks": ("#c378d2", Hatch(6, 0, 1.6), "rail_animation"),
    "token": ("#f04b5a", Hatch(6, 0, 1.2, dots=True), "thread_state_iowait"),
    "requests": ("#4b1e00", Hatch(8, 45, 1.2, crossed=True), "cq_build_abandoned"),
    "queued": ("#7818f0", Hatch(5, 45, 1.4), "light_memory_dump"),
}
CAUSES = {name: colour for name, (colour, *_) in _IDLE.items()}
CAUSE_HATCHES = {name: hatch for name, (_, hatch, _) in _IDLE.items()}
CHROME_CAUSES = {name: chrome for name, (*_, chrome) in _IDLE.items()}
#: Colours of the parts of a bubble: causes of idle time, and activities that do not count as work.
BUBBLE_PARTS = CAUSES | {
    "unattributed": UNATTRIBUTED,
    "next iterations": FORWARD,
    "optimizer": OPTIMIZER,
}


@dataclass(frozen=True)
class Ink:
    """The colours that differ between light and dark mode. Operations have the same in both."""

    paper: str
    text: str
    quiet: str
    frame: str
    band: str
    hatch: str
    gap: str
    grid: str


#: Colours on white paper.
LIGHT = Ink(
    paper="#ffffff",
    text="#16191d",
    quiet="#5a626c",
    frame="#16191d",
    band="#f6f7f9",
    hatch="#c3c9d1",
    gap="#eceef1",
    grid="#dfe3e8",
)
#: Colours on a dark screen.
DARK = Ink(
    paper="#14171c",
    text="#e8eaed",
    quiet="#a3abb5",
    frame="#05070a",
    band="#1d2127",
    hatch="#454d58",
    gap="#262b32",
    grid="#2b3038",
)


@dataclass(frozen=True)
class Paint:
    """The fill of the box of an operation.

    Attributes:
        name: Unique name of letters, digits and hyphens.
        bands: Height and colour of each band, from top to bottom. The heights sum to 1.
        number: Colour of the number in the box.
    """

    name: str
    bands: tuple[tuple[float, str], ...]
    number: str

    @property
    def main(self) -> str:
        """The colour of the tallest band, on which the number is drawn."""
        return max(self.bands, key=lambda band: band[0])[1]


def _split_channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red, green, blue


def mix(colour: str, other: str, fraction: float) -> str:
    """Interpolate between ``colour`` (``fraction`` 0) and ``other`` (``fraction`` 1)."""
    pairs = zip(_split_channels(colour), _split_channels(other), strict=True)
    mixed = (round(a + (b - a) * fraction) for a, b in pairs)
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def measure_luminance(colour: str) -> float:
    """Return the relative luminance (WCAG 2), from 0 for black to 1 for white."""
    red, green, blue = (_to_linear(channel / 255) for channel in _split_channels(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _to_linear(channel: float) -> float:
    """Convert a channel from sRGB to linear intensity, both from 0 to 1."""
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def measure_contrast(colour: str, other: str) -> float:
    """Return the contrast ratio (WCAG 2), from 1 to 21."""
    low, high = sorted((measure_luminance(colour), measure_luminance(other)))
    return (high + 0.05) / (low + 0.05)


def choose_number_colour(fill: str) -> str:
    """Return black or white, whichever has more contrast with ``fill`` (at least 4.5 : 1)."""
    return BLACK if measure_contrast(fill, BLACK) >= measure_contrast(fill, WHITE) else WHITE


def make_shade(colour: str, shade: int, shades: int) -> str:
    """Return one of several shades of a colour.

    Args:
        colour: The colour.
        shade: Index of the shade, from dark to light, or -1 for the colour itself.
        shades: Number of shades. A single shade is the colour itself.
    """
    if shades <= 1 or shade < 0:
        return colour
    dark = mix(colour, BLACK, _TOWARDS_BLACK.get(colour, 0.0))
    light = mix(colour, WHITE, _TOWARDS_WHITE.get(colour, 0.0))
    fraction = shade / (shades - 1)
    if fraction == 0.5:
        return colour
    if fraction < 0.5:
        return mix(dark, colour, 2 * fraction)
    return mix(colour, light, 2 * fraction - 1)


def get_heat_colour(fraction: float) -> str:
    """Return the colour at a position on the scale of times, from 0 (fast) to 1 (slow)."""
    fast, usual, slow = _HEAT
    if fraction < 0.5:
        return mix(fast, usual, 2 * fraction)
    return mix(usual, slow, 2 * fraction - 1)


@cache
def make_paint(phase: Phase, shade: int = -1, second_shade: int = -1, shades: int = 1) -> Paint:
    """Return the paint of a phase, from a cache. All communication phases have the same paint.

    Args:
        phase: Any phase.
        shade: Index of the operation's chunk among the chunks, or -1 if it has none.
        second_shade: Index of the second chunk, for ``FB``.
        shades: Number of chunks with different shades.
    """
    if phase in COMMUNICATION_PHASES:
        return make_plain_paint("communication", COMMUNICATION)

    def shade_of(colour: str, of: int = shade) -> str:
        return make_shade(colour, of, shades)

    pale = ((0.15, PALE_INPUT),) if shades > 2 else ()
    bands: dict[Phase, tuple[tuple[float, str], ...]] = {
        Phase.F: ((1.0, shade_of(FORWARD)),),
        Phase.B: (*pale, (0.85 if pale else 1.0, shade_of(BACKWARD_INPUT))),
        Phase.W: ((0.8, shade_of(BACKWARD_WEIGHT)), (0.2, PALE_WEIGHT)),
        Phase.BW: ((0.8, shade_of(BACKWARD_BOTH)), (0.2, shade_of(BACKWARD_WEIGHT))),
        Phase.R: ((0.2, shade_of(FORWARD)), (0.8, RECOMPUTE)),
        Phase.FB: (
            (0.25, shade_of(FORWARD)),
            (0.5, PAIR),
            (0.25, shade_of(BACKWARD_INPUT, second_shade)),
        ),
        Phase.OPTIMIZER: ((1.0, OPTIMIZER),),
    }
    parts = [phase.label, *(str(s) for s in (shade, second_shade) if s >= 0 and shades > 1)]
    name = "-".join([*parts, f"of{shades}"] if len(parts) > 1 else parts)
    main = max(bands[phase], key=lambda band: band[0])[1]
    return Paint(name, bands[phase], choose_number_colour(main))


def make_plain_paint(name: str, colour: str) -> Paint:
    """Return a paint with a single band."""
    return Paint(name, ((1.0, colour),), choose_number_colour(colour))


def make_chunk_paint(phase: Phase, chunk: int, second: int, chunks: Sequence[int]) -> Paint:
    """Return the paint of an operation on one or two chunks.

    Args:
        phase: Phase of the operation.
        chunk: Chunk of the operation, or -1 if it has none.
        second: Second chunk of an ``FB``, otherwise ignored.
        chunks: All chunks that are drawn, ascending.
    """

    def find_shade(number: int) -> int:
        return chunks.index(number) if number in chunks and len(chunks) > 1 else -1

    second_shade = find_shade(second) if phase is Phase.FB else -1
    return make_paint(phase, find_shade(chunk), second_shade, len(chunks))
