"""Rules for all public names, commands, conventions, queries and plug-ins."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import sqlite3
from contextlib import closing
from dataclasses import fields, is_dataclass

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.cli import app as cli
from bubbleviz.conventions import toml_files
from bubbleviz.conventions.convention import NUMBER_GROUPS, Convention, Pattern
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.range_names import bare_name, parse_range_names
from bubbleviz.model.phases import COUNTED
from bubbleviz.render import formats as renderers
from bubbleviz.sources.ascend.recording import ASCEND
from bubbleviz.sources.nsys.queries import QUERIES as NSYS_QUERIES
from bubbleviz.sources.rocm.database_parts import ROCPD, RPD
from bubbleviz.sources.sqlite.database import SQLITE_QUERIES
from bubbleviz.sources.sqlite.queries import Query, sql_root
from tests.support.command_line import run_program
from tests.support.places import CHECKOUT


def test_public_names_are_sorted_and_exist() -> None:
    assert bubbleviz.__all__ == sorted(bubbleviz.__all__)
    assert all(getattr(bubbleviz, name) is not None for name in bubbleviz.__all__)


def test_the_conda_recipe_requires_what_the_package_requires() -> None:
    """The lists may differ only in order and comments."""
    project = toml_files.load((CHECKOUT / "pyproject.toml").read_text("utf-8"))
    recipe = (CHECKOUT / "scripts/conda/recipe.yaml").read_text("utf-8")
    run = recipe.partition("  run:\n")[2].partition("\ntests:")[0]
    required = {dependency.partition(";")[0] for dependency in project["project"]["dependencies"]}

    assert {
        re.sub(r" (?=[<>])", "", requirement)
        for requirement in re.findall(r"(?:- |then: )([a-z].*)", run)
    } - {
        "python",
        'if: match(python, "<3.11")',
    } == required
    assert all(
        f"- {require.replace('>', ' >', 1)}" in recipe
        for require in project["build-system"]["requires"]
    )


@pytest.mark.parametrize(
    ("file", "version"),
    [
        ("CITATION.cff", rf"^version: {bubbleviz.__version__}$"),
        ("README.md", rf"^ *version *= {{{bubbleviz.__version__}}},$"),
    ],
)
def test_citations_name_the_current_version(file: str, version: str) -> None:
    assert re.search(version, (CHECKOUT / file).read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", bubbleviz.__all__)
def test_public_objects_can_be_pickled(name: str) -> None:
    value = getattr(bubbleviz, name)

    assert getattr(bubbleviz, name) is value
    assert pickle.loads(pickle.dumps(value)) is value or name == "__version__"


def test_a_name_that_is_not_public_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        bubbleviz.__getattr__("nonsense")


@pytest.mark.parametrize("name", [n for n in bubbleviz.__all__ if n != "__version__"])
def test_public_names_are_documented(name: str) -> None:
    value = getattr(bubbleviz, name)
    text = inspect.getdoc(value) or ""
    parts: list[str] = []
    if is_dataclass(value):
        parts = [part.name for part in fields(value)]
    elif inspect.isfunction(value):
        parts = list(inspect.signature(value).parameters)

    assert text
    assert [part for part in parts if f"{part}:" not in text] == []


def test_queries_are_outside_the_package_which_is_typed() -> None:
    assert not (CHECKOUT / "bubbleviz" / "sql").exists()
    assert sql_root().is_dir()
    assert (CHECKOUT / "bubbleviz" / "py.typed").is_file()


#: Modules that only the functions that need them import; see test_imports.py.
HEAVY = ("drawsvg", "intervaltree", "scipy", "sqlalchemy")

#: Commands that do no work, with their exit codes.
WITHOUT_WORK = {
    0: (
        "",
        "--help",
        "--version",
        *(f"{name} --help" for name in ("analyze", "inspect", "compare", "gate", "pgle")),
    ),
    2: (
        "--nonsense",
        "nonsense",
        "analyze",
        "analyze --nonsense",
        "compare one.json",
        "gate nowhere.json",
        "pgle pyproject.toml --csv x.csv",
    ),
    1: (
        "pgle nowhere.sqlite",
        "pgle pyproject.toml --pb pyproject.toml",
        "gate nowhere.json --max-bubble schedule=0.1",
        "inspect nowhere.sqlite",
        "analyze nowhere.sqlite",
        "analyze nowhere*.sqlite",
        "analyze pyproject.toml --svg pyproject.toml",
        "analyze pyproject.toml --svg nowhere/x.svg",
    ),
}


def test_help_and_refusals_load_nothing_heavy() -> None:
    commands = [
        (code, arguments)
        for code, command_lines in WITHOUT_WORK.items()
        for arguments in command_lines
    ]
    script = (
        "import json, sys; from bubbleviz.cli.app import main; "
        f"found = [[main(c.split()), *sorted({{*{HEAVY}}} & {{*sys.modules}})] "
        f"for _, c in {commands}]; print(); print(json.dumps(found))"
    )
    done = run_program(["-c", script])

    assert json.loads(done.stdout.splitlines()[-1]) == [[code] for code, _ in commands]


#: Modules that a command must not import for small profiles.
#: Each one takes 5 to 200 ms.
LEFT_OUT = {
    ("--help",): ("bubbleviz.api", "bubbleviz.cli.commands", "numpy", "sqlite3"),
    ("analyze", "fixtures/1f1b"): (
        "drawsvg",
        "duckdb",
        "intervaltree",
        "numpy.ma",
        "rich.table",
        "scipy",
        "sqlalchemy",
        "bubbleviz.analyses",
        "bubbleviz.render.comparison",
        "bubbleviz.render.ideal",
        "bubbleviz.render.latex",
        "bubbleviz.render.web",
        "bubbleviz.report.restored",
    ),
    ("idle", "fixtures/1f1b"): ("duckdb", "scipy", "sqlalchemy"),
    ("inspect", "fixtures/1f1b"): ("drawsvg", "duckdb", "scipy"),
    (
        "simulate",
        "--schedule",
        "1f1b",
        "-p",
        "4",
        "-m",
        "8",
        "--tf",
        "1",
        "--tb",
        "1",
        "--tw",
        "1",
    ): ("bubbleviz.sources.nsys", "scipy", "sqlalchemy", "sqlite3"),
}


@pytest.mark.parametrize(
    ("arguments", "left_out"), LEFT_OUT.items(), ids=lambda value: value[0] if value else ""
)
def test_a_small_profile_loads_only_what_it_needs(
    arguments: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    script = (
        "import sys; from bubbleviz.cli.app import main; code = main(sys.argv[1:]); "
        f"print(code, [m for m in {left_out} if m in sys.modules])"
    )

    assert run_program(["-c", script, *arguments]).stdout.splitlines()[-1] == "0 []"


COMMANDS = sorted(
    command.name or (command.callback.__name__ if command.callback else "")
    for command in cli.make_application().registered_commands
    if not command.hidden
)


def print_help(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main([*arguments, "--help"]) == 0
    return capsys.readouterr().out


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    help_text = print_help(capsys)

    assert {"analyze", "inspect"} <= set(COMMANDS)
    assert all(re.search(rf"^\W+{name} ", help_text, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_listed_with_the_first_sentence_of_their_help(command: str) -> None:
    of_command, of_list = (
        cli.make_application(arguments).registered_commands for arguments in ([command], ["--help"])
    )
    docstring = inspect.getdoc(of_command[0].callback) or ""
    help_of_command = {help_of_command.name: help_of_command.help for help_of_command in of_list}

    assert help_of_command[command] == " ".join(docstring.partition("\n\n")[0].split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_every_option_and_ends_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = print_help(capsys, command)
    example = " ".join(text[text.rindex("Example: bubbleviz ") :].split())
    words = example.split()[2:]
    options = {word for word in words if word.startswith("-") and word != "-"}
    group = typer.main.get_command(cli.make_application())
    parameters = getattr(group, "commands")[command].params  # noqa: B009 - vendored class

    assert words[0] == command
    assert text.rstrip().endswith(words[-1])
    assert all(re.search(rf"(?<![\w-]){option}(?![\w-])", text) for option in options)
    assert [p.name for p in parameters if not getattr(p, "help", None)] == []


CONVENTIONS = tuple(built_in().values())
PATTERNS = [(c.name, i, p) for c in CONVENTIONS for i, p in enumerate(c.patterns)]


def matches_glob(text: str, glob: str) -> bool:
    with closing(sqlite3.connect(":memory:")) as database:
        ((is_match,),) = database.execute("SELECT ? GLOB ?", (text, glob)).fetchall()
    return bool(is_match)


@pytest.mark.parametrize(
    "pattern", [p for _, _, p in PATTERNS], ids=[f"{name}-{i}" for name, i, _ in PATTERNS]
)
def test_the_prefilter_lets_every_name_through(pattern: Pattern) -> None:
    @settings(max_examples=25)
    @given(st.from_regex(pattern.compiled))
    def every_name_passes(text: str) -> None:
        assert matches_glob(text, pattern.glob)

    every_name_passes()


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda c: c.name)
def test_a_convention_explains_itself(convention: Convention) -> None:
    """A convention matches its examples, uses all its patterns, and matches no counter-example."""
    assert all((convention.summary, convention.source))
    assert all((convention.examples, convention.counter_examples))
    names = parse_range_names(convention.examples, convention)
    assert [names.texts[row] for row in (~names.is_understood).nonzero()[0]] == []
    for text in convention.examples:
        assert any(matches_glob(text, glob) for glob in convention.globs), text
    counter_examples = parse_range_names(convention.counter_examples, convention)
    assert [
        counter_examples.texts[row] for row in counter_examples.is_understood.nonzero()[0]
    ] == []
    examples = [bare_name(text, convention.domain) for text in convention.examples]
    for pattern in convention.patterns:
        assert any(pattern.compiled.search(text) for text in examples), pattern.regex
        assert pattern.groups == set(pattern.compiled.groupindex) <= {*NUMBER_GROUPS, "phase"}


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda c: c.name)
def test_no_other_convention_takes_the_forwards_and_backwards(convention: Convention) -> None:
    meanings = parse_range_names(convention.examples, convention)
    forwards_and_backwards = [
        t for t, phase in zip(meanings.texts, meanings.phase, strict=True) if phase in COUNTED
    ]

    for other in CONVENTIONS:
        if other is not convention:
            theirs = parse_range_names(forwards_and_backwards, other)
            assert not [
                t for t, p in zip(forwards_and_backwards, theirs.phase, strict=True) if p in COUNTED
            ]


QUERIES_OF_ALL = (NSYS_QUERIES, ROCPD, RPD, ASCEND, SQLITE_QUERIES)
#: Query collections, keyed by their folder in sql/.
MAKERS = {queries.folder: queries for queries in QUERIES_OF_ALL}
#: All SQL files, as FOLDER/NAME.
FILES = sorted(
    path.relative_to(CHECKOUT / "sql").with_suffix("").as_posix()
    for path in (CHECKOUT / "sql").rglob("*.sql")
)
QUERIES = [name for name in FILES if "/views/" not in name]
VARIANTS = [name for name in FILES if "/views/" in name]
HEAD = re.compile(
    r"\A-- [A-Z][^\n]*\.\n(?:--\n)?"  # the result
    r"(?:(?:-- (?!requires:)[^\n]+\n)+--\n)?"  # further remarks
    r"(?:-- requires: \w+\([\w, ]+\)\n)*(?=(?:SELECT|WITH)\b)"
)
#: Queries that require no table, such as lists of tables and the view of an absent table.
WITHOUT_TABLES = {"schema", "relations", "columns", "views/strings/absent"}
#: Tables and functions that SQLite itself provides.
CATALOG = {
    "json_each",
    "sqlite_master",
    "PRAGMA_TABLE_INFO",
    "PRAGMA_TABLE_XINFO",
    "pragma_table_info",
    "pragma_table_xinfo",
}
#: Pattern of a result column: its name and the comment after it.
COLUMN = re.compile(r"\bAS (\w+),?(?:  -- (\S.*))?$", re.MULTILINE)


def query(name: str) -> Query:
    folder, _, file = name.partition("/")
    return MAKERS[folder].query(file)


def create_empty_database(name: str) -> sqlite3.Connection:
    """Return an empty database that has only the tables and columns that a query requires."""
    database = sqlite3.connect(":memory:")
    for table, columns in query(name).requires.items():
        quoted = ", ".join(f'"{column}"' for column in columns)
        database.execute(f'CREATE TABLE "{table}" ({quoted})')
    return database


def binds_of(name: str) -> dict[str, int]:
    return dict.fromkeys(query(name).parameters, 1)


def test_there_are_queries() -> None:
    assert {"nsys/gpu_work/kernels", "rocpd/gpu_work/kernels", "rpd/gpu_work/kernels"} < set(
        QUERIES
    )
    assert "nsys/views/kernels/current" in VARIANTS
    assert {name.split("/")[0] for name in FILES} == set(MAKERS)


@pytest.mark.parametrize("name", FILES)
def test_a_query_requires_what_it_reads(name: str) -> None:
    """The header lists the tables and columns, and the text of the file runs without changes."""
    read: set[tuple[str, str]] = set()

    def note(
        action: int, table: str | None, column: str | None, _: str | None, __: str | None
    ) -> int:
        if action == sqlite3.SQLITE_READ and table and column and column != "ROWID":
            read.add((table, column))
        return sqlite3.SQLITE_OK

    with closing(create_empty_database(name)) as database:
        database.set_authorizer(note)
        assert database.execute(query(name).text, binds_of(name)).fetchall() == []
    required = {(t, column) for t, columns in query(name).requires.items() for column in columns}

    assert {(table, column) for table, column in read if table not in CATALOG} == required
    assert HEAD.match(query(name).text)
    assert required or name.partition("/")[2] in WITHOUT_TABLES


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_comments_its_columns_and_states_its_order(name: str) -> None:
    with closing(create_empty_database(name)) as database:
        description = database.execute(query(name).text, binds_of(name)).description
    comments = dict(COLUMN.findall(query(name).text))
    code = re.sub(r"--.*", "", query(name).text)

    assert [column for column, *_ in description if not comments.get(column)] == []
    assert code.split()[0] in {"SELECT", "WITH"}
    assert "ORDER BY" in code
    assert ";" not in code
    assert "SELECT *" not in code


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_of_a_view_gives_all_columns_of_the_view(name: str) -> None:
    """The view has no parameters and is not sorted.

    A query that reads a part of the view therefore does not build all of it.
    """
    folder, _, view, _ = name.split("/")
    with closing(create_empty_database(name)) as database:
        database.execute(f"CREATE TEMP VIEW {view} AS {query(name).text}")
        description = database.execute(f"SELECT * FROM {view}").description
    variants = [each for each in QUERIES if each.startswith(f"{folder}/")]
    needed = {column for each in variants for column in query(each).requires.get(view, ())}

    assert {column for column, *_ in description} == needed
    assert "ORDER BY" not in query(name).text
    assert query(name).parameters == ()


def test_the_variant_that_reads_most_is_chosen() -> None:
    columns = {"start", "end", "eventType", "globalTid", "text", "textId"}
    schema = {"NVTX_EVENTS": frozenset(columns), "StringIds": frozenset({"id", "value"})}

    assert NSYS_QUERIES.select_views(schema)["ranges"].name == "views/ranges/without_end_thread"
    assert NSYS_QUERIES.select_views(schema)["strings"].name == "views/strings/current"
    assert "kernels" not in NSYS_QUERIES.select_views(schema)


def test_every_output_format_is_a_suffix_in_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = " ".join(print_help(capsys, "analyze").replace("│", "").split())
    available = renderers.list_renderers()

    assert "--parquet" not in text
    assert len({renderer.name for renderer in available}) == len(available)
    assert all(
        f"{output_format.suffixes[0]}, " in text.replace(")", ", ") and output_format.summary
        for output_format in available
    )
