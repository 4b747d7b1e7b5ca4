"""The plot of bubbles against memory shows each order once, without overlapping labels."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleviz.cli.app import main
from bubbleviz.render.picture.lettering import text_width
from bubbleviz.render.picture.memory_plot import MemoryPlot, MemoryPoint, draw_memory_plot
from tests.support.command_line import CommandLine
from tests.support.places import FIXTURES

Box = tuple[float, float, float, float]


def draw_plot(points: list[MemoryPoint], **options: object) -> str:
    return draw_memory_plot(MemoryPlot("Orders", tuple(points), **{"in_bytes": True, **options}))  # type: ignore[arg-type]


def measure_labels(svg: str, names: list[str]) -> dict[str, Box]:
    """Return the bounding box of each label that contains names of orders, keyed by its text."""
    boxes = {}
    for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        text = "".join(element.itertext())
        if any(name in names for name in text.split(", ")):
            x, y = float(element.get("x", "0")), float(element.get("y", "0"))
            boxes[text] = (x, y - 8, x + text_width(text, 10.5), y + 2)
    return boxes


def test_a_plot_without_orders_has_its_reason() -> None:
    assert "why not" in draw_plot([], reason="why not")


def test_orders_at_one_place_share_a_label() -> None:
    svg = draw_plot(
        [MemoryPoint("a", 1e9, 0.3), MemoryPoint("b", 1e9, 0.3), MemoryPoint("c", 0.0, 0.0)]
    )

    assert set(measure_labels(svg, ["a", "b", "c"])) == {"a, b", "c"}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=17, unique=True
    ),
    st.integers(1, 30),
)
def test_labels_do_not_overlap(places: list[tuple[int, int]], limit: int) -> None:
    names = [f"interleaved-zb{number}" for number in range(len(places))]
    points = [MemoryPoint(name, 1e9 + x * 1e9, y / 40, x < limit)
              for name, (x, y) in zip(names, places, strict=True)]  # fmt: skip
    boxes = measure_labels(draw_plot(points, limit=limit * 1e9 + 1e9), names)

    assert len(boxes) == len(places)
    for (_, box), (_, other_box) in combinations(boxes.items(), 2):
        is_disjoint = (
            box[0] >= other_box[2]
            or other_box[0] >= box[2]
            or box[1] >= other_box[3]
            or other_box[1] >= box[3]
        )
        assert is_disjoint


def test_layouts_and_plans_are_plotted(tmp_path: Path, cli: CommandLine) -> None:
    layers, report = tmp_path / "layers.csv", tmp_path / "report.json"
    rows = [f"layers.{number},1,1,1,1GB" for number in range(6)]
    layers.write_text("\n".join(["name,forward_ms,backward_ms,weight_ms,memory", *rows, ""]))
    file = str(tmp_path / "a.memory.svg")
    assert main(["layout", "--layers", str(layers), "-p", "2", "-m", "4", "-o", file]) == 0
    assert "GB" in Path(file).read_text()
    layers.write_text(layers.read_text().replace(",1GB", ","))
    sizes = "--layers", layers, "-p", "2", "-m", "4", "-o", file, "--force"
    assert "memory of the layers is unknown; add" in cli.refused("layout", *sizes, code=2)
    assert main(["analyze", str(FIXTURES / "1f1b"), "--json", str(report)]) == 0
    assert main(["plan", str(report), "-o", file, "--force"]) == 0
    assert "activations of the fullest device" in Path(file).read_text()
