"""Objects of the Python API that terminals and notebooks display: printed records and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, overload

from bubbleviz.errors import UsageError
from bubbleviz.model.arguments import refuse_wrong_types
from bubbleviz.model.arrow import Kind, Records, ValueT, collect_attributes, make_row_type
from bubbleviz.model.choices import parse_style
from bubbleviz.model.paper_lengths import parse_millimeters
from bubbleviz.model.texts import list_first, name_python_arguments, suggest_word, to_one_line
from bubbleviz.render import document as doc
from bubbleviz.render.files import write_outputs
from bubbleviz.render.formats import format_of_suffix
from bubbleviz.render.html import render_html
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.render.text.terminal import render_plain_text
from bubbleviz.report.view import View

DataT = TypeVar("DataT")

#: Functions that convert an SVG document to a picture format, keyed by the name of the format.
CONVERSIONS: Mapping[str, Callable[[str], str | bytes]] = {
    "svg": str,
    "pdf": as_pdf,
    "png": as_png,
}
#: Style sheet of a fragment. Gray lines and inherited colors are legible in any theme.
_STYLE = """
.bubbleviz-report{color:inherit;font-size:13px;line-height:1.45;max-width:1200px}
.bubbleviz-report div{overflow-x:auto}
.bubbleviz-report p{margin:.3em 0}
.bubbleviz-report table{border-collapse:collapse;color:inherit;margin:.7em 0}
.bubbleviz-report caption{caption-side:top;color:inherit;font-weight:bold;text-align:left}
.bubbleviz-report th,.bubbleviz-report td{background:none;border:0;color:inherit;
 border-bottom:1px solid rgba(128,128,128,.4);font-variant-numeric:tabular-nums;
 padding:.15em .7em .15em 0;text-align:right;white-space:nowrap}
.bubbleviz-report .bubbleviz-words{max-width:min(34em,40vw);overflow:hidden;text-align:left;
 text-overflow:ellipsis}
.bubbleviz-report svg{height:auto;max-width:100%}
"""
#: Maximum number of names that an error message lists, and their maximum length in characters.
_MAX_NAMES, _MAX_LENGTH = 12, 60


class Hinting:
    """Base class of results whose error for a guessed attribute says what to use instead."""

    #: Code to use instead of each attribute that does not exist, keyed by attribute name.
    _hints: ClassVar[Mapping[str, str]] = {}

    # Type checkers would otherwise accept any attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name not in self._hints:
                object.__getattribute__(self, name)  # raises the usual error
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}; use {self._hints[name]}"
            )


#: Code to use instead of methods of data frames and figures, keyed by method name.
_RECORD_HINTS: Mapping[str, str] = {
    name: f"to_pandas().{name}" for name in ("describe", "groupby", "head", "plot", "sort_values")
}
_PICTURE_HINTS: Mapping[str, str] = {"savefig": 'save("x.svg")', "show": 'save("x.svg")'}


class PrintedRecords(Records[ValueT], Hinting):
    """Records that are printed as a table, and that can be looked up by name.

    ``records[0]`` is the first record, and ``records["name"]`` is the record with that name.

    Args:
        values: Objects, all of the same type.
        kinds: Type of each attribute, keyed by its name, in the order of the columns.
        blocks: Document that shows the records.
        key: Attribute that names a record.
    """

    _hints = _RECORD_HINTS

    def __init__(
        self,
        values: Iterable[ValueT],
        kinds: Mapping[str, Kind],
        blocks: Iterable[doc.Block],
        key: str = "name",
    ) -> None:
        super().__init__(values, partial(collect_attributes, kinds))
        self._blocks, self._key = tuple(blocks), key

    @overload
    def __getitem__(self, index: int | str) -> ValueT: ...

    @overload
    def __getitem__(self, index: slice) -> Records[ValueT]: ...

    def __getitem__(self, index: int | str | slice) -> ValueT | Records[ValueT]:
        """Return a record by position or by name, or several records.

        Raises:
            KeyError: No record has this name.
            IndexError: The position is out of range.
        """
        if not isinstance(index, str):
            return super().__getitem__(index)
        names = [str(getattr(record, self._key)) for record in self]
        if index not in names:
            short_names = [to_one_line(name, _MAX_LENGTH) for name in names]
            listed = f"; the names are {list_first(short_names, _MAX_NAMES)}"
            raise KeyError(f"there is no {index!r:.60}{suggest_word(index, names) or listed}")
        return super().__getitem__(names.index(index))

    def __repr__(self) -> str:
        # Tables without rows are left out of documents.
        return render_plain_text(self._blocks).strip("\n") or super().__repr__()

    def _repr_html_(self) -> str:
        """Return the table as HTML."""
        return wrap_fragment(render_html(self._blocks))


def wrap_fragment(content: str) -> str:
    """Return an HTML fragment for a notebook, with a style sheet for its own elements.

    Args:
        content: The HTML elements of the fragment.
    """
    return f'<div class="bubbleviz-report"><style>{_STYLE}</style>{content}</div>'


def make_rows(name: str, kinds: Mapping[str, Kind], objects: Iterable[object]) -> list[Any]:
    """Return one named tuple per object, which contains the attributes that are columns.

    Args:
        name: Name of the type of the tuples.
        kinds: Type of each column, keyed by the name of the attribute.
        objects: Objects that have these attributes.
    """
    row = make_row_type(name, tuple(kinds))
    return [row._make(getattr(each, column) for column in kinds) for each in objects]


@dataclass(frozen=True, repr=False)
class Picture(Hinting):
    """A picture. Notebooks display it, and :meth:`save` writes it to a file.

    Attributes:
        svg: The picture as an SVG document.
    """

    _hints = _PICTURE_HINTS

    svg: str

    def save(self, path: str | Path) -> None:
        """Write the picture to a file. The path's suffix determines the format.

        Args:
            path: Path of the file. An existing file is replaced. The suffix is ``.svg``, ``.pdf``
                or ``.png``.

        Raises:
            UsageError: No picture format has this suffix.
            OutputError: A package for the format is not installed, or the file cannot be written.
        """
        save_as(path, CONVERSIONS, lambda name: CONVERSIONS[name](self.svg))

    def __repr__(self) -> str:
        return "Picture(a notebook displays it; save('x.svg') writes it to a file)"

    def _repr_svg_(self) -> str:
        """Return the picture as an SVG document."""
        return self.svg


def save_as(path: str | Path, names: Iterable[str], render: Callable[[str], str | bytes]) -> None:
    """Write an output file in the format that its suffix names.

    Args:
        path: Path of the file. An existing file is replaced.
        names: Names of the formats to choose from.
        render: Function that returns the content in the format with a given name.

    Raises:
        UsageError: The suffix belongs to none of the formats, or the content cannot be rendered.
        OutputError: A package for the format is not installed, or the file cannot be written.
    """
    with name_python_arguments():
        content = render(format_of_suffix(str(path), names))
    write_outputs({str(path): content}, force=True)


def convert_to(kind: type[DataT], value: Any, **changes: Any) -> DataT:
    """Return an instance of a dataclass or struct as an instance of a subclass.

    Args:
        kind: The subclass, which has the same fields.
        value: The instance.
        changes: New values of fields, keyed by the name of the field.
    """
    names = getattr(value, "__struct_fields__", None)
    if names is None:
        names = [field.name for field in fields(value)]
    values = {name: getattr(value, name) for name in names}
    return kind(**values | changes)


def draw_picture(
    draw: Callable[[View], str],
    style: str | None,
    width: str | float | None,
    **attributes: Any,
) -> Picture:
    """Return the picture that a function draws for the arguments of a ``plot`` method.

    Args:
        draw: Function that returns the SVG document for a view.
        style: Style of the picture; see :class:`.View`.
        width: Width on paper with a unit, such as ``"89mm"``, or a number of millimeters.
        attributes: Other attributes of the view.

    Raises:
        UsageError: A value is invalid or has the wrong type, or there is nothing to draw.
    """
    view = make_view(style, width, **attributes)
    with name_python_arguments():
        return Picture(draw(view))


def make_view(style: str | None, width: str | float | None, **attributes: Any) -> View:
    """Return a view from the arguments of a ``plot`` method.

    Args:
        style: Style of the picture; see :class:`.View`.
        width: Width on paper with a unit, such as ``"89mm"``, or a number of millimeters.
        attributes: Other attributes of the view.

    Raises:
        UsageError: A value is invalid or has the wrong type.
    """
    with name_python_arguments():
        width_mm = None if width is None else _parse_width(width)
        view = View(style=style, width_mm=width_mm, **attributes)
        refuse_wrong_types(View, vars(view))
        parse_style(style)
    return view


def check_view(view: View | None) -> View:
    """Return the view that was passed to a method ``save``, or the default view for None.

    Raises:
        UsageError: The value is not a view, or an attribute of the view has the wrong type.
    """
    if not isinstance(view, (View, NoneType)):
        raise UsageError(
            f"{view!r:.60}: is not a bubbleviz.View; pass one path and one view to save()"
        )
    checked = view or View()
    refuse_wrong_types(View, vars(checked))
    return checked


def _parse_width(width: object) -> float:
    """Return a width on paper in mm, given a text with a unit, or a number of mm.

    Raises:
        UsageError: The width is neither a text nor a number, or it is out of range.
    """
    if isinstance(width, str):
        return parse_millimeters(width, "--width")
    if isinstance(width, Real):
        return parse_millimeters(f"{float(width):g}mm", "--width")
    raise UsageError(f"width={width!r:.60}: must be a length, such as '89mm' or 89")
