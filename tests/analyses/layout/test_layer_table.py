"""Tables of layers: what their cells mean, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from bubbleviz.analyses.layout.layer_table import read_layers, table_text
from bubbleviz.errors import BubblevizError, InputError
from bubbleviz.schedules.layout.layers import LayerKind

HEAD = "name,forward_ms,backward_ms"


def table(tmp_path: Path, text: str) -> str:
    file = tmp_path / "layers.csv"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_table_without_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no layers, or no column 'name'"):
        read_layers(table(tmp_path, ""))
    with pytest.raises(InputError, match="no layers"):
        read_layers(table(tmp_path, HEAD + "\n"))
    with pytest.raises(InputError, match="no such file"):
        read_layers(str(tmp_path / "none.csv"))


def test_three_columns_are_enough(tmp_path: Path) -> None:
    found = read_layers(table(tmp_path, f"{HEAD}\nembedding,1,3\nlayers.0,2.5,5\nlm_head,1,1\n"))

    assert found.layers.forward_ns.tolist() == [1_000_000, 2_500_000, 1_000_000]
    assert found.layers.fused_ns.tolist() == [3_000_000, 5_000_000, 1_000_000]
    assert found.layers.weight_ns.tolist() == [1_500_000, 2_500_000, 500_000]
    assert found.layers.kinds == (LayerKind.EMBEDDING, LayerKind.TRANSFORMER, LayerKind.HEAD)
    assert (found.split, found.memory, found.in_bytes) == (False, False, None)


def test_memory_is_in_bytes_where_a_cell_has_a_unit(tmp_path: Path) -> None:
    head = "name;forward_ms;backward_ms;weight_ms;memory;memory_weight;resident;transfer_ms;kind"
    found = read_layers(table(tmp_path, f"{head}\nx;1;1;1;2GB;1GiB;3MB;0.5;mtp\n"))

    assert found.layers.held.tolist() == [2e9]
    assert found.layers.kept.tolist() == [2**30]
    assert found.layers.resident.tolist() == [3e6]
    assert found.layers.down_ns.tolist() == found.layers.up_ns.tolist() == [500_000]
    assert found.layers.kinds == (LayerKind.MTP,)
    assert (found.split, found.memory, found.in_bytes) == (True, True, True)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    head = "name,forward_ms,backward_ms,weight_ms,memory,transfer_ms"
    found = read_layers(table(tmp_path, f"{head}\na,1.25,2,3,7,0.5\n=b,1,1,1,8,0\n"))
    again = read_layers(table(tmp_path, table_text(found.layers, {"stage:1f1b": [0, 1]})))

    for name in found.layers.column_names():
        assert getattr(again.layers, name).tolist() == getattr(found.layers, name).tolist()
    assert again.layers.names == ("a", "'=b")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"{HEAD}\na,x,1\n", "row 1, forward_ms: 'x' is no time in milliseconds"),
        (f"{HEAD}\na,-1,1\n", "is no time"),
        (f"{HEAD}\na,nan,1\n", "is no time"),
        (f"{HEAD}\na,1,\n", "row 1, backward_ms"),
        (f"{HEAD},kind\na,1,1,tail\n", "kind: 'tail' is none of"),
        (f"{HEAD},memory\na,1,1,many\n", "no amount of memory"),
        (f"{HEAD},memory,memory_weight\na,1,1,1,2\n", "more than memory"),
        ("name,forward_ms\na,1\n", "no column 'backward_ms'"),
    ],
)
def test_what_is_no_table_is_refused(text: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(BubblevizError, match=error):
        read_layers(table(tmp_path, text))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (["a,1,2,1.5GB,0", "b,1,2,300,0"], r"row 2, memory: '300' is a plain number"),
        (["a,1,2,300,0", "b,1,2,0,1.5GB"], r"row 2, resident: '1.5GB' is in bytes"),
    ],
)
def test_memory_in_bytes_and_in_plain_numbers_is_refused(
    rows: list[str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=says):
        read_layers(table(tmp_path, "\n".join([f"{HEAD},memory,resident", *rows])))


def test_no_memory_has_no_unit(tmp_path: Path) -> None:
    assert read_layers(table(tmp_path, f"{HEAD},memory\na,1,2,1.5GB\nb,1,2,0\n")).in_bytes


def test_more_layers_than_any_model_has_are_refused(tmp_path: Path) -> None:
    rows = "a,1,1\n" * 1000

    assert len(read_layers(table(tmp_path, f"{HEAD}\n{rows}")).layers) == 1000
    with pytest.raises(InputError, match="more than 1,000 layers"):
        read_layers(table(tmp_path, f"{HEAD}\n{rows}a,1,1\n"))
