"""Published outputs name files relative to the directory in which the command ran."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from bubbleviz.model.limitations import Limitation, LimitationKind, merge_limitations
from bubbleviz.render.picture.picture import picture
from bubbleviz.report.published_paths import list_limitation_lines, make_paths_relative
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.drawn_reports import make_report
from tests.support.places import FIXTURES


@pytest.mark.parametrize("location", ["here", "below", "beside"])
@pytest.mark.parametrize("output", ["svg", "latex", "text"])
def test_footers_and_comments_name_no_directory_of_the_machine(
    output: str, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "secret" / "run"
    folder = {"here": directory, "below": directory / "a", "beside": tmp_path / "b"}[location]
    folder.mkdir(parents=True)
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(FIXTURES / "1f1b" / "node0.sqlite", folder / "node0.sqlite")
    (folder / "node1.sqlite").write_bytes(b"SQLite format 3\0 damaged")
    monkeypatch.chdir(directory)

    assert main(["analyze", str(folder), f"--{output}", "out"]) == 0

    content = Path("out").read_text()
    expected_path = {
        "here": "node1.sqlite",
        "below": "a/node1.sqlite",
        "beside": "../../b/node1.sqlite",
    }
    assert str(tmp_path) not in content
    assert "secret" not in content
    path = rf"(?<![/\w]){re.escape(expected_path[location])}"
    # Pictures list limitations without reasons, which name files.
    assert bool(re.search(path, content.replace("\\_", "_"))) == (output != "svg")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ""),
        (["{root}/run/node0.sqlite"], "node0.sqlite"),
        (["node0.sqlite", "{root}/run"], "node0.sqlite ."),
        (["{root}/run/*.sqlite"], "'*.sqlite'"),
        (["{root}/it's/node0.sqlite"], """'../it'"'"'s/node0.sqlite'"""),
        (["{root}/run/-odd.sqlite"], "./-odd.sqlite"),
        (["--html={root}/page.html", "--skip", "1"], "--html=../page.html --skip 1"),
        (["--dask", "tcp://scheduler:8786"], "--dask tcp://scheduler:8786"),
        (["--latex", "/"], "--latex {up}"),
    ],
)
def test_the_command_line_names_no_directory_of_the_machine(
    words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    arguments = ["bubbleviz", "analyze", *(word.format(root=tmp_path) for word in words)]
    report = replace(make_report([]), command=shlex.join(arguments))

    command = make_paths_relative(report).command

    up = os.path.relpath("/")
    assert command == " ".join(["bubbleviz analyze", expected.format(up=up)]).rstrip()


def test_a_deleted_directory_leaves_only_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bubbleviz.report.published_paths import make_relative

    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert make_relative(str(tmp_path / "node0.sqlite")) == "node0.sqlite"


def make_report_without_models(paths: tuple[str, ...], reason: str) -> Report:
    """Return a report whose profiles all lack the models of their GPUs."""
    report = make_report([])
    (profile,) = report.profiles
    limitations = tuple(
        Limitation("GPU models", f"{path} {reason}", kind=LimitationKind.DETAILS) for path in paths
    )
    profiles = tuple(replace(profile, path=path) for path in paths)
    return replace(report, profiles=profiles, limitations=tuple(merge_limitations(limitations)))


def test_a_limitation_of_several_files_is_one_line() -> None:
    paths = tuple(f"node{number}.sqlite" for number in range(4))
    report = make_report_without_models(paths, "lacks TARGET_INFO_GPU")

    assert list_limitation_lines(report) == [
        "GPU models (4): lacks TARGET_INFO_GPU (node0.sqlite and 3 other files)"
    ]
    single = make_report_without_models(paths[:1], "lacks TARGET_INFO_GPU")
    assert list_limitation_lines(single) == ["GPU models: node0.sqlite lacks TARGET_INFO_GPU"]


def test_all_paths_of_a_merged_limitation_are_relative() -> None:
    paths = tuple(str(Path(f"run/node{number}.sqlite").absolute()) for number in range(8))
    report = make_report_without_models(paths, "lacks TARGET_INFO_GPU")

    (limitation,) = make_paths_relative(report).limitations
    assert limitation.reason == (
        "run/node0.sqlite lacks TARGET_INFO_GPU; run/node1.sqlite lacks TARGET_INFO_GPU; "
        "run/node2.sqlite lacks TARGET_INFO_GPU; and 5 more"
    )


def test_a_picture_does_not_list_details_that_it_does_not_show() -> None:
    report = make_report_without_models(("node0.sqlite",), "lacks TARGET_INFO_GPU")
    cut = Limitation("kernels", "they were not recorded")

    assert "TARGET_INFO_GPU" not in picture(report, View())
    drawn = picture(replace(report, limitations=(*report.limitations, cut)), View())
    assert "they were not recorded" in drawn
