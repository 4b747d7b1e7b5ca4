"""Colors of pictures, legible in print, in grayscale and on a dark screen.

The fill colors of phases match those of the figures in the zero-bubble papers. Some phase colors
are equally dark. A phase that would otherwise look like another one in grayscale, or like idle
time, has a strip along its top edge, its bottom edge, or both::

    F ▇▇▇▇   B ▇▇▇▇   BW ▇▇▇▇   W ▇▇▇▇   R ▀▀▀▀   FB ▀▀▀▀   Optimizer ▀▀▀▀
                         ▒▒▒▒     ░░░░                ▄▄▄▄             ▄▄▄▄

Idle time uses other hues, and each cause of idle time has its own hatch.

A rank's chunks range from dark fills with white numbers to light fills with black numbers. With
three or more chunks, ``B`` also has a strip along its top edge.
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
DARK_OPTIMIZER = "#8a6500"
COMMUNICATION = "#e69138"
UNATTRIBUTED = "#a4a9b1"
OTHER_ITERATION = "#d3d7dc"
#: Phase colors for terminals, which cannot show strips along the edges of boxes. The phases are
#: distinguishable in grayscale and on terminals with 256 or 16 colors.
TERMINAL = {
    Phase.F: "#2f7af2",
    Phase.B: "#2faac2",
    Phase.W: "#1f7f2f",
    Phase.BW: "#64d79b",
    Phase.R: "#b9c7e7",
    Phase.FB: "#134cb7",
    Phase.OPTIMIZER: OPTIMIZER,
}

#: Colors of device activities, and of host activities while the device is idle, keyed by name.
#: The colors of device work differ in luminance, and avoidable idle time has strong colors.
#: Unlisted activities use the colors in ``MORE_ACTIVITIES`` in turn.
ACTIVITIES = {
    "compute": "#93aee8",
    "communication": "#f3c99b",
    "copies": "#4f968f",
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
#: Color of the critical path.
CRITICAL = "#c2185b"
#: Colors for fast, usual and slow times in a heat map. Slower times are darker.
_HEAT = ("#e4f1fb", "#c9c3ba", "#7f1d1d")

# Fractions of black and white. If there are several chunks, the first chunk's color is mixed with
# black, and the last chunk's color with white.
_TOWARDS_BLACK = {FORWARD: 0.38, BACKWARD_INPUT: 0.36, BACKWARD_WEIGHT: 0.42, BACKWARD_BOTH: 0.42}
_TOWARDS_WHITE = {FORWARD: 0.45, BACKWARD_INPUT: 0.58, BACKWARD_WEIGHT: 0.5, BACKWARD_BOTH: 0.5}


@dataclass(frozen=True)
class Hatch:
    """The hatch pattern for a cause of idle time. A square tile with a line or a dot is repeated.

    Attributes:
        spacing: Side length of the tile, in page units.
        angle: Rotation of the tile, in degrees.
        line: Width of the line or radius of the dot, in page units. 0 means no line and no dot.
        crossed: Whether a second line crosses the first line.
        dots: Whether the tile contains a dot instead of a line.
    """

    spacing: float
    angle: int = 0
    line: float = 0.8
    crossed: bool = False
    dots: bool = False

    def choose_ink(self, color: str) -> str:
        """Return the color of hatch lines: darker than a light fill, or lighter than a dark fill.

        A fill whose luminance is above 0.2 is mixed with 50 % black, and any other fill with 65 %
        white.

        Args:
            color: The fill color, such as ``#397af2``.
        """
        return mix(color, BLACK, 0.5) if measure_luminance(color) > 0.2 else mix(color, WHITE, 0.65)


#: (color, hatch, closest named color in Chrome's trace viewer) for each cause of idle time. Work is
#: blue, green and yellow, while idle time is gray, brown, red and purple. Idle time also has a
#: hatch if the output format supports hatches. A test checks that work and all causes are
#: distinguishable with any kind of color vision. The test also checks that adjacent causes differ
#: in luma, as do BW and ``dependency``.
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
CAUSES = {name: color for name, (color, *_) in _IDLE.items()}
CAUSE_HATCHES = {name: hatch for name, (_, hatch, _) in _IDLE.items()}
CHROME_CAUSES = {name: chrome for name, (*_, chrome) in _IDLE.items()}
#: Colors of bubble parts: causes of idle time, and activities that do not count as work.
BUBBLE_PARTS = CAUSES | {
    "unattributed": UNATTRIBUTED,
    "next iterations": FORWARD,
    "optimizer": OPTIMIZER,
}


@dataclass(frozen=True)
class Ink:
    """Colors that differ between light and dark mode.

    Operation colors are the same in both modes.
    """

    paper: str
    text: str
    quiet: str
    frame: str
    band: str
    hatch: str
    gap: str
    grid: str


#: Colors for light mode and for print.
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
#: Colors for dark mode.
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
    """The fill of an operation's box, made up of one or more horizontal bands.

    Attributes:
        name: Unique name that contains only letters, digits and hyphens.
        bands: (height, color) of each band, from top to bottom. Heights are fractions of the box
            and add up to 1.
        number: Color of the microbatch number in the box.
    """

    name: str
    bands: tuple[tuple[float, str], ...]
    number: str

    @property
    def main(self) -> str:
        """The color of the tallest band, which lies behind the number."""
        return max(self.bands, key=lambda band: band[0])[1]


def _split_channels(color: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return red, green, blue


def mix(color: str, other: str, fraction: float) -> str:
    """Interpolate linearly between two sRGB colors, such as ``#397af2``.

    A ``fraction`` of 0 returns ``color``, and a ``fraction`` of 1 returns ``other``.
    """
    pairs = zip(_split_channels(color), _split_channels(other), strict=True)
    mixed = (round(a + (b - a) * fraction) for a, b in pairs)
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def measure_luminance(color: str) -> float:
    """Return the relative luminance of a color as defined by WCAG 2: 0 for black, 1 for white."""
    red, green, blue = (_to_linear(channel / 255) for channel in _split_channels(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _to_linear(channel: float) -> float:
    """Convert a channel value in [0, 1] from sRGB to linear intensity."""
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def measure_contrast(color: str, other: str) -> float:
    """Return the contrast ratio between two colors as defined by WCAG 2, from 1 to 21."""
    low, high = sorted((measure_luminance(color), measure_luminance(other)))
    return (high + 0.05) / (low + 0.05)


def choose_number_color(fill: str) -> str:
    """Return black or white, whichever has more contrast with ``fill``. Black wins a tie."""
    return BLACK if measure_contrast(fill, BLACK) >= measure_contrast(fill, WHITE) else WHITE


def make_shade(color: str, shade: int, shades: int) -> str:
    """Return one of several shades of a color.

    Shades are interpolated from a darker color through the color itself to a lighter color.

    Args:
        color: The base color.
        shade: Index of the shade from 0 (darkest) to ``shades - 1`` (lightest), or -1 to return the
            base color.
        shades: Number of shades. With a single shade, the base color is returned.
    """
    if shades <= 1 or shade < 0:
        return color
    dark = mix(color, BLACK, _TOWARDS_BLACK.get(color, 0.0))
    light = mix(color, WHITE, _TOWARDS_WHITE.get(color, 0.0))
    fraction = shade / (shades - 1)
    if fraction == 0.5:
        return color
    if fraction < 0.5:
        return mix(dark, color, 2 * fraction)
    return mix(color, light, 2 * fraction - 1)


def get_heat_color(fraction: float) -> str:
    """Return the color at a position on the time scale of a heat map, from 0 (fast) to 1 (slow)."""
    fast, usual, slow = _HEAT
    if fraction < 0.5:
        return mix(fast, usual, 2 * fraction)
    return mix(usual, slow, 2 * fraction - 1)


@cache
def make_paint(phase: Phase, shade: int = -1, second_shade: int = -1, shades: int = 1) -> Paint:
    """Return the cached paint of a phase. All communication phases share one paint.

    Args:
        phase: The phase.
        shade: Zero-based index of the shade for the operation's chunk, or -1 if the chunk is
            unknown.
        second_shade: Index of the shade for the second chunk of an ``FB``, or -1.
        shades: Number of chunks, each of which has a different shade.
    """
    if phase in COMMUNICATION_PHASES:
        return make_plain_paint("communication", COMMUNICATION)

    def shade_of(color: str, of: int = shade) -> str:
        return make_shade(color, of, shades)

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
        Phase.OPTIMIZER: (
            (0.15, DARK_OPTIMIZER),
            (0.7, OPTIMIZER),
            (0.15, DARK_OPTIMIZER),
        ),
    }
    parts = [phase.label, *(str(s) for s in (shade, second_shade) if s >= 0 and shades > 1)]
    name = "-".join([*parts, f"of{shades}"] if len(parts) > 1 else parts)
    main = max(bands[phase], key=lambda band: band[0])[1]
    return Paint(name, bands[phase], choose_number_color(main))


def make_plain_paint(name: str, color: str) -> Paint:
    """Return a paint that fills the entire box with one color."""
    return Paint(name, ((1.0, color),), choose_number_color(color))


def make_chunk_paint(phase: Phase, chunk: int, second: int, chunks: Sequence[int]) -> Paint:
    """Return the paint of an operation that runs on one chunk, or on two chunks for an ``FB``.

    Each chunk has its own shade of the phase's color. The base color is used if there is only one
    chunk, or if the chunk is not in ``chunks``.

    Args:
        phase: Phase of the operation.
        chunk: Chunk of the operation, or -1 if unknown.
        second: The second chunk of an ``FB``. Ignored for other phases.
        chunks: All chunks in the picture, ascending.
    """

    def find_shade(number: int) -> int:
        return chunks.index(number) if number in chunks and len(chunks) > 1 else -1

    second_shade = find_shade(second) if phase is Phase.FB else -1
    return make_paint(phase, find_shade(chunk), second_shade, len(chunks))
