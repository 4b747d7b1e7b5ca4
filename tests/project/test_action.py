"""The entry point of the GitHub action, run with the variables that a runner sets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bubbleviz.errors import describe_installation
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.places import CHECKOUT, FIXTURES

ACTION = CHECKOUT / ".github" / "actions" / "bubbleviz"
#: Matches the installation of an extra, in a page or in the code of a message.
_EXTRA = re.compile(r"""pip install '\.\[(\w+)\]'|describe_installation\(["'](\w+)["']\)""")


@dataclass
class Job:
    """A simulated job of a CI runner."""

    folder: Path

    def run(self, **inputs: str) -> tuple[int, str, str, str]:
        """Run the entry point, and return its exit code, log, job summary and outputs."""
        files = {
            name: self.folder / name.lower() for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")
        }
        variables = {f"INPUT_{name.upper()}": value for name, value in inputs.items()}
        done = subprocess.run(
            [sys.executable, str(ACTION / "entrypoint.py")],
            cwd=self.folder,
            env={**os.environ, **variables, **{name: str(file) for name, file in files.items()}},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        summary, outputs = (f.read_text() if f.exists() else "" for f in files.values())
        return done.returncode, done.stdout, summary, outputs


@pytest.fixture
def job(tmp_path: Path) -> Job:
    plant(Planting(slow_stage=2, slow_factor=1.5), tmp_path / "slow")
    return Job(tmp_path)


def test_a_regression_fails_and_reviewers_see_why(job: Job) -> None:
    baseline = str(FIXTURES / "1f1b")

    code, log, summary, outputs = job.run(run="slow", max_bubble="'schedule=30%'", before=baseline)

    assert code == 3
    assert "::error title=bubbleviz::FAILED: schedule" in log
    assert "stage 2" in summary
    assert "stage 0 █" in summary
    assert "ratio=0.3" in outputs
    assert "passed=false" in outputs
    assert (job.folder / "bubbleviz" / "bubbles.svg").is_file()


def test_a_run_within_its_limits_passes(job: Job) -> None:
    code, log, _, outputs = job.run(run="slow", max_bubble="60% step=70%", folder="out")

    assert (code, "passed=true" in outputs, "::error" in log) == (0, True, False)

    code, log, *_ = job.run(run="out/report.json", max_bubble="60%", before="nowhere")

    assert code == 1
    assert "::error title=bubbleviz::bubbleviz: nowhere" in log

    code, log, summary, outputs = job.run(run="out/report.json", folder="free")

    assert (code, "passed=true" in outputs) == (0, True)
    assert "::notice title=bubbleviz::No limit was given" in log
    assert "nothing was required" in summary


def test_a_run_without_a_pipeline_has_limits_of_idle_time(job: Job) -> None:
    steps = [{"name": f"ProfilerStep#{n}", "cat": "user_annotation"} for n in range(3)]
    kernels = [{"name": "gemm", "cat": "kernel"} for _ in range(3)]
    events = [
        {**own, "ph": "X", "pid": pid, "tid": pid, "ts": 100 * n, "dur": us, "args": {"device": 0}}
        for pid, us, names in ((1, 99, steps), (0, 60, kernels))
        for n, own in enumerate(names)
    ]
    (job.folder / "trace.json").write_text(json.dumps({"traceEvents": events}))

    code, log, summary, outputs = job.run(run="trace.json", max_bubble="60%")

    assert (code, "passed=true" in outputs) == (0, True), log
    assert "ok: idle" in log
    assert summary
    assert job.run(run="trace.json", max_bubble="1%")[0] == 3


@pytest.mark.parametrize(
    ("run", "code"),
    [
        ("", 2),
        ("nowhere", 1),
        ("--help", 1),
        ("other.json", 1),
        ("bad.json", 1),
        ("bef'ore", 2),
        ("zero.json", 1),
        ("nothing", 1),
    ],
)
def test_what_cannot_be_measured_is_reported(run: str, code: int, job: Job) -> None:
    (job.folder / "nothing").mkdir()
    for name, text in (("other", "{}"), ("bad", "{bad}"), ("zero", "")):
        (job.folder / f"{name}.json").write_text(text)
    exit_code, log, summary, _ = job.run(run=run, max_bubble="60%")

    assert (exit_code, summary) == (code, "")
    assert "::error title=bubbleviz::" in log
    assert "Traceback" not in log


def test_every_input_reaches_the_entrypoint() -> None:
    """The GitLab template and the action set only variables that the entry point reads."""
    read = (ACTION / "entrypoint.py").read_text()
    for file in (ACTION / "action.yml", CHECKOUT / "scripts" / "gitlab" / "bubbleviz.yml"):
        for line in file.read_text().splitlines():
            name, _, _ = line.strip().partition(":")
            if name.startswith("INPUT_"):
                assert name.removeprefix("INPUT_").lower().replace("_", "-") in read


def test_every_documented_installation_uses_this_repository() -> None:
    """No page, message or template installs from a package index, which may lack the package."""
    project = (CHECKOUT / "pyproject.toml").read_text()
    package = CHECKOUT / "bubbleviz"
    documents = [CHECKOUT / "README.md", *(CHECKOUT / "scripts" / "pages" / "docs").rglob("*.md")]
    for path in (*documents, *package.rglob("*.md"), *package.rglob("*.py")):
        text = path.read_text()
        assert "pip install bubbleviz" not in text, path
        assert "bubbleviz[" not in text, path
        for extra in map("".join, _EXTRA.findall(text)):
            assert re.search(rf"^{extra} = \[", project, re.MULTILINE), (path, extra)
    assert describe_installation("html").endswith(
        "in your clone of bubbleviz with: pip install '.[html]'"
    )
    pages = ("README.md", "scripts/pages/docs/index.md")
    for page in pages:
        text = (CHECKOUT / page).read_text()
        assert "git clone https://github.com/bubbleviz/bubbleviz" in text
        assert "pip install '.[all]'" in text
    # Three folders above the action is the root of the repository.
    assert '"${BUBBLEVIZ_PACKAGE:-$ACTION/../../..}"' in (ACTION / "action.yml").read_text()
    assert (ACTION / "../../.." / "pyproject.toml").is_file()
    template = (CHECKOUT / "scripts" / "gitlab" / "bubbleviz.yml").read_text()
    assert "https://github.com/bubbleviz/bubbleviz/archive/$[[ inputs.version ]].zip" in template
