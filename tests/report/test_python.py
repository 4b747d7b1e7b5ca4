"""The Python API accepts the obvious spelling of common questions about reports."""

from __future__ import annotations

import json
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from subprocess import run
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pandas
import polars
import polars.selectors
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import bubbleviz
from bubbleviz.errors import UsageError
from bubbleviz.render.formats import list_renderers
from bubbleviz.render.loaded import LoadedIdleReport, LoadedReport
from bubbleviz.render.picture.picture import picture
from bubbleviz.render.simulated import Ideal
from bubbleviz.report.compared.comparison import Comparison
from bubbleviz.report.other_schedules import simulate_other_schedules
from tests.support.nccl_runs import write_ring
from tests.support.notes import list_restriction_codes
from tests.support.pipeline_jobs import Job, simulate_job
from tests.support.places import FIXTURES


@cache
def example(**options: Any) -> bubbleviz.Report:
    """Return the report of the 1F1B example, cached for all tests."""
    return bubbleviz.analyze(FIXTURES / "1f1b", **options)


def test_ratio_advice_and_worst_iteration_are_attributes(tmp_path: Path) -> None:
    table = simulate_job(Job(rank={6: 1.5}, iteration={2: 1.5})).written(
        tmp_path / "operations.csv"
    )
    report = bubbleviz.analyze(table)

    assert report.bubble_ratio == report.summary.bubble_ratio[report.headline].mean
    assert report.advice[0].kind == "rank"
    assert str(report.advice[0]) == report.advice[0].text
    assert repr(report.advice[0]) == f"AdviceEntry({report.advice[0].text!r})"
    report.save(tmp_path / "report.json")
    read = bubbleviz.load(tmp_path / "report.json")
    assert isinstance(read, bubbleviz.RunSummary)
    assert report.advice == tuple(read.advice)
    assert report.worst_iteration is not None
    ratios = [iteration.ratios[report.headline].value for iteration in report.iterations]
    assert report.worst_iteration.bubble_ratio == max(r for r in ratios if r)
    rank_ratios = [
        i.ranks[3].bubble_ratio[report.headline] for i in report.iterations if i.averaged
    ]
    assert report.ranks[3].bubble_ratio == fmean(ratio for ratio in rank_ratios if ratio)


@pytest.mark.parametrize("name", ["operations", "ranks", "iterations", "bubbles", "stages"])
def test_tables_go_to_pandas_and_polars_in_one_call(name: str) -> None:
    report = example()
    table = getattr(report, name)
    pandas_frame, polars_frame = pandas.DataFrame(table), polars.DataFrame(table)

    assert len(pandas_frame) == len(polars_frame) == len(table) > 0
    shared = [column for column in polars_frame.columns if column in pandas_frame]
    assert name == "iterations" or shared == polars_frame.columns
    for column in shared:
        left = [None if pandas.isna(value) else value for value in pandas_frame[column].to_list()]
        assert left == polars_frame[column].to_list(), column
    assert len(repr(table)) < 400


def test_a_row_per_stage_has_its_ratio_work_and_causes() -> None:
    report = example()
    frame = polars.DataFrame(report.stages)

    assert frame["stage"].to_list() == [0, 1, 2, 3]
    assert frame["bubble_ratio"].to_list() == pytest.approx([3 / 11] * 4)
    # Stage s of an ideal 1F1B waits for s forwards of 1 ms.
    assert frame["idle_ns_warmup"].to_list() == [0, 1e6, 2e6, 3e6]
    causes = frame.select(polars.sum_horizontal(polars.selectors.starts_with("idle_ns_")))
    assert causes.to_series().to_list() == frame["bubble_ns"].to_list() == [9e6] * 4


def test_the_picture_of_an_iteration_is_shown_and_saved(tmp_path: Path) -> None:
    report = example()
    plot = report.plot(report.worst_iteration, causes=True)
    plot.save(tmp_path / "x.svg")

    view = bubbleviz.View(iterations=(0,), causes=True)
    assert (tmp_path / "x.svg").read_text(encoding="utf-8") == picture(report, view)
    assert plot._repr_svg_() == picture(report, view)


def test_a_figure_of_a_paper_is_plotted_with_its_width_and_style(tmp_path: Path) -> None:
    report = example()
    figure = report.plot(iteration=2, rank=3, width="89mm", style="paper")
    figure.save(tmp_path / "x.svg")

    view = bubbleviz.View(iterations=(2,), ranks=(3,), width_mm=89.0, style="paper")
    assert (tmp_path / "x.svg").read_text(encoding="utf-8") == picture(report, view)
    assert report.plot(report.iterations[2], ranks=[3], width=89, style="paper") == figure
    assert repr(figure) == "Picture(a notebook displays it; save('x.svg') writes it to a file)"


def test_causes_and_ratios_are_tables_of_records_that_are_found_by_name() -> None:
    report = example()

    drain = report.causes["drain"]
    assert sum(cause.share for cause in report.causes) == pytest.approx(report.bubble_ratio)
    assert report.causes[1:][0] == report.causes[1]
    assert report.ratios["schedule"].mean == report.bubble_ratio == report.ratios[0].mean
    assert report.causes.to_pandas().set_index("name").loc["drain"].share == drain.share
    for records, definition in ((report.causes, "drain"), (report.ratios, "period")):
        assert definition in repr(records)
        assert not repr(records).endswith("\n")
        assert "<table>" in records._repr_html_()
        assert pickle.loads(pickle.dumps(records)) == records
    with pytest.raises(KeyError, match=r"there is no 'drian'; did you mean drain\?"):
        report.causes["drian"]
    with pytest.raises(KeyError, match="there is no 'x'; the names are schedule, stage, "):
        report.ratios["x"]


def test_other_schedules_are_simulated_when_they_are_asked_for() -> None:
    asked, simulated = example(), example(what_if=True)

    assert asked.other_schedules is None
    assert repr(asked.what_if()) == repr(simulated.what_if())
    assert asked.what_if() == simulated.what_if()
    zb_h1, same = (asked.what_if()[name].makespan_ms for name in ("zb-h1", "1f1b"))
    assert zb_h1 is not None
    assert same is not None
    assert zb_h1 < same
    frame = asked.what_if().to_pandas().set_index("schedule")
    assert frame.loc["zb-h1", "makespan_ms"] == zb_h1
    not_replayed = replace(asked, explanation=replace(asked.explanation, changes=()))
    assert repr(not_replayed.what_if()).startswith("Other schedules cannot be compared: no iter")
    assert len(not_replayed.what_if()) == 0


def test_other_schedules_are_compared_with_the_plan_of_the_report(tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    bubbleviz.simulate("gpipe", 4, 8).save(plan)
    asked, simulated = (example(plan=plan, **more) for more in ({}, {"what_if": True}))

    assert asked.what_if() == simulated.what_if()
    on_request = asked.derive(simulate_other_schedules)
    assert simulated.other_schedules is not None
    assert repr(on_request.same_schedule) == repr(simulated.other_schedules.same_schedule)
    assert "plan.csv" in repr(on_request.same_schedule)


def test_a_report_is_the_json_document_and_a_data_frame(tmp_path: Path) -> None:
    report = example()
    report.save(tmp_path / "report.json")
    document = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    frame = report.to_pandas()

    assert json.loads(json.dumps(report.to_dict())) == document
    loaded = bubbleviz.load(tmp_path / "report.json")
    assert isinstance(loaded, bubbleviz.RunSummary)
    assert json.loads(json.dumps(loaded.to_dict())) == document
    assert (loaded.num_ranks, loaded.num_stages) == (4, 4)
    assert frame["busy_ns"].sum() == report.operations.busy_ns.sum()
    assert frame["microbatch"].dtype == "Int64"
    assert frame["phase"].value_counts()["F"] == 3 * 4 * 8
    assert (report.num_ranks, report.num_stages) == (4, 4)
    assert (report.num_iterations, report.num_microbatches) == (3, 8)
    assert str(report.schedule) == "1f1b (order matches in 3 of 3 iterations)"


def test_a_missing_pandas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(bubbleviz.BubblevizError, match="install it with: pip install pandas"):
        example().to_pandas()


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda own, _: own.plot(3), "there is no iteration 3; the report has only 3"),
        (
            lambda own, to: own.plot(0).save(to / "x.csv"),
            "x.csv: unknown suffix; the name must end in one of .panels",
        ),
        (lambda own, _: own.plot("worst"), "there is no iteration 'worst'; the report has only 3"),
        (lambda own, _: own.plot([1]), "there is no iteration [1]; the report has only 3"),
        (lambda own, _: own.plot(ranks=(4,)), "no rank 4; the report has only 4"),
        (lambda own, _: own.plot(ranks=2), "ranks=2: is not a sequence; pass ranks=(2,)"),
        (lambda own, _: own.plot(rank=4), "no rank 4; the report has only 4"),
        (lambda own, _: own.plot(iteration=3), "there is no iteration 3; the report has only 3"),
        (lambda own, _: own.plot(width="89"), "width '89': must be a length with a unit"),
        (lambda own, _: own.plot(width=9), "width '9mm': must be between 40 and 1189 mm"),
        (lambda own, _: own.plot(width=[89]), "width=[89]: must be a length, such as '89mm' or 89"),
        (lambda own, _: own.plot(style="papr"), "style 'papr': must be one of screen, paper"),
        (
            lambda own, _: own.save("x.svg", "x.md"),
            "'x.md': is not a bubbleviz.View; pass one path",
        ),
        (
            lambda own, to: own.save(to / "x.foo"),
            "x.foo: unknown suffix; the name must end in one of ",
        ),
        (lambda own, _: own.plot(rows="x")._repr_svg_(), "rows 'x': must be one of"),
        (lambda own, _: bubbleviz.compare(own, 3), "runs=3: must be of type Report | RunSummary"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.analyze(None), "paths=None: must be of type str | Path"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.analyze("x", memory_limit="y"), "memory_limit y: "),
        (lambda *_: bubbleviz.analyze("x", memory_limit="8GB"), "pass what_if as well"),
        (lambda *_: bubbleviz.simulate(report=3), "Report | RunSummary | str | Path | None; see"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.simulate(["1f1b", "zb-h1"], 4, 8), "must be of type str | None"),  # type: ignore[arg-type]  # as people do
        (lambda own, _: bubbleviz.simulate(report=own, microbatches=[8]), "must be of type int"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.analyze("x", align="y"), "align 'y': must be one of"),
        (lambda *_: bubbleviz.analyze("x", parallel="pp=4"), "; pass bubbleviz.Parallel(pp=4)"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.analyze("x", parallel="qq=4"), "; see help(bubbleviz.Parallel)"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.analyze({1, 2}), "paths={1, 2}: must be of type str | Path"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.analyze("x", memory=7), "memory=7: must be of type bool"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.analyze("x", memory=np.ones(2)), "must be of type bool"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.analyze("x", memory=1.0), "memory=1.0: must be of type bool"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.analyze("x", order=np.array(3)), "order=array(3): must be of type"),  # type: ignore[arg-type]  # as people do
        (lambda own, _: own.iteration("a"), "iteration 'a': must be an integer"),
        (lambda *_: bubbleviz.analyze("x", skip=-1), "skip -1: must be 0 or more"),
        (lambda *_: bubbleviz.analyze("x", skip="y"), "skip='y': must be of type int"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.analyze("x", order="ab"), "order='ab': must be of type"),  # type: ignore[arg-type]  # as people do
        (
            lambda *_: bubbleviz.analyze("x", same_clock=("ab",)),
            "same_clock=('ab',): must be of type",
        ),
        (lambda own, _: own.plot(causes="x"), "causes='x': must be of type bool"),
        (lambda own, _: own.save("x.svg", bubbleviz.View((0.5,))), "iterations=(0.5,): must be of"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.idle(None), "paths=None: must be of type str | Path"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.inspect(None), "path=None: must be of type str | Path"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.load(3), "must be of type str | Path; see help(bubbleviz.load)"),  # type: ignore[arg-type]  # as people do
        (lambda *_: bubbleviz.Parallel("x"), "tp='x': must be of type int; see help(bubbleviz.P"),  # type: ignore[arg-type]  # as people do
    ],
)
def test_wrong_arguments_end_in_a_sentence_about_python(
    wrong: Callable[[Any, Path], object], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(bubbleviz.BubblevizError) as refused:
        wrong(example(), tmp_path)

    assert expected in str(refused.value)
    assert not re.search(r"(^|\s)--?[a-z]", str(refused.value))


#: Public names, and names in their annotations, each with its module.
NAMED = dict.fromkeys({*bubbleviz.__all__} - {"__version__"}, "bubbleviz")
NAMED |= {name: home for own in bubbleviz._ANNOTATION_TYPES.values() for name, home in own.items()}


@pytest.mark.parametrize(("name", "home"), sorted(NAMED.items()))
def test_annotations_of_public_names_are_types(name: str, home: str) -> None:
    # The modules that the annotations name are not loaded in a separate process.
    script = f"import typing; from {home} import {name}; typing.get_type_hints({name})"

    run([sys.executable, "-c", script], check=True)


def test_numbers_and_sequences_of_numpy_are_arguments() -> None:
    numbers: dict[str, Any] = {"skip": np.int64(1), "order": np.arange(4)}
    skipped = bubbleviz.analyze(FIXTURES / "1f1b", **numbers)

    assert skipped.summary.iterations == example(skip=1).summary.iterations
    times: dict[str, Any] = {"tf": np.float32(1.5), "tb": np.int64(2), "tw": np.ones(4)}
    plain: dict[str, Any] = {"tf": 1.5, "tb": 2, "tw": (1.0,) * 4}
    from_numpy, from_plain = (
        bubbleviz.simulate("1f1b", 4, 8, **arguments) for arguments in (times, plain)
    )
    assert from_numpy.cost_ms == from_plain.cost_ms
    truth: dict[str, Any] = {"causes": np.bool_(True)}
    assert example().plot(**truth)._repr_svg_()
    names: Any = (str(path) for path in [FIXTURES / "1f1b"])
    assert bubbleviz.analyze(names).command == example().command


def test_a_report_and_its_parts_can_be_pickled(tmp_path: Path) -> None:
    for rows in (example().stages, [*example().operations][:3]):
        assert pickle.loads(pickle.dumps(rows)) == rows
    for window in (None, "iteration:1-1"):
        report = example(window=window)
        unpickled = pickle.loads(pickle.dumps(report))
        assert unpickled.advice == report.advice
        assert len(unpickled.bubbles) == len(report.bubbles) > 0
        report.save(tmp_path / "report.json")
        saved = bubbleviz.load(tmp_path / "report.json")
        assert saved.what_to_do_first == report.what_to_do_first is not None
        assert pickle.loads(pickle.dumps(saved)) == saved


def test_dir_lists_public_names() -> None:
    ideal, estimate = (bubbleviz.simulate(name, 4, 8) for name in ("1f1b", "1f1b-i"))
    compared = bubbleviz.compare(*[FIXTURES / "1f1b"] * 2)

    assert {"analyze", "compare", "idle", "load", "simulate"} < set(dir(bubbleviz))
    assert ideal.bubble_ratio == pytest.approx(3 / 11)
    assert estimate.bubble_ratio == estimate.stage_ratio
    assert "bubble_ratio" in dir(ideal)
    for namespace in (bubbleviz, ideal, compared):
        assert not [name for name in dir(namespace) if name[0] == "_"][1:]


def test_objects_that_users_see_are_public_and_named_as_documented() -> None:
    report = example()

    assert type(report) is bubbleviz.Report
    assert {"bubble_ratio", "stages", "plot", "save"} < set(dir(report))
    assert not {"busy", "exposed", "overheads", "pauses"} & set(dir(report))
    assert all(hasattr(report, name) for name in dir(report))
    with pytest.raises(AttributeError, match="'Report' object has no attribute 'nothing'"):
        getattr(report, "nothing")  # noqa: B009 - types know that it is none
    with pytest.raises(
        AttributeError, match=r"no attribute 'to_csv'; use report.save\(\"x.csv\"\)$"
    ):
        getattr(report, "to_csv")  # noqa: B009 - likewise
    assert len(repr(bubbleviz.idle(FIXTURES / "1f1b").ranks)) < 4 * 100
    for value in (report.iterations[0], report.iterations[0].ranks, report.ranks):
        assert len(repr(value)) < 200


def test_what_errors_recommend_instead_of_an_attribute_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, report = FIXTURES / "1f1b", example()
    idle = bubbleviz.idle(path)
    names = {"bubbleviz": bubbleviz, "path": path, "report": report, "idle": idle}
    monkeypatch.chdir(tmp_path)

    for result in (report, idle):
        for guess, instead in type(result)._hints.items():
            assert guess not in dir(result)
            with pytest.raises(AttributeError, match=f"'{guess}'; use {re.escape(instead)}$"):
                getattr(result, guess)
            eval(instead, names)


def test_errors_recommend_pandas_for_tables_and_save_for_pictures() -> None:
    report = example()

    with pytest.raises(AttributeError, match=r"no attribute 'head'; use to_pandas\(\)\.head$"):
        getattr(report.causes, "head")  # noqa: B009 - types know that it does not exist
    with pytest.raises(AttributeError, match=r"no attribute 'savefig'; use save\(\"x\.svg\"\)$"):
        getattr(report.plot(), "savefig")  # noqa: B009 - likewise


def test_arguments_of_simulations_are_explained() -> None:
    what_if: Any = example().what_if

    with pytest.raises(UsageError, match=r"what_if has no argument schedule; select a row"):
        what_if(schedule="zb-h1")
    with pytest.raises(UsageError, match=r"what_if has no argument microbatches; call bubbleviz"):
        what_if(microbatches=8)
    assert bubbleviz.simulate(microbatches=8, report=example()).cost_ms > 0
    assert example().what_if()["zb-h1"].cost_ms


def test_compared_runs_can_be_titled() -> None:
    compared = bubbleviz.compare({"short": example(), "split": FIXTURES / "zb-h2"})

    assert [run.title for run in compared.runs] == ["short", "split"]
    assert "split" in compared.plot().svg


def test_schedules_are_simulated_at_given_and_at_measured_times(tmp_path: Path) -> None:
    report = example()
    report.save(tmp_path / "report.json")
    saved = tmp_path / "report.json"

    assert repr(bubbleviz.simulate("1f1b", 4, 8)) == (
        "Ideal(1f1b, 4 stages, 8 microbatches: 33.000 ms, bubble ratio 0.2727)"
    )
    for source in (report, saved):
        repeated = bubbleviz.simulate(report=source)
        assert repr(repeated) == repr(bubbleviz.simulate("1f1b", 4, 8))
        halved = bubbleviz.simulate("zb-h1", report=source, tf=0.5, tw=[0.5, 0.5, 0.5, 1.0])
        assert halved.cost_ms < bubbleviz.simulate("zb-h1", report=source).cost_ms
    # Virtual stages keep their measured times, as on the command line.
    uneven = bubbleviz.simulate(report=bubbleviz.analyze(FIXTURES / "zb-v"))
    assert "25.804 ms" in repr(uneven)
    doubted = json.loads(saved.read_text())
    doubted["restrictions"] = [{"code": "ranks-missing", "text": "ranks are missing"}]
    saved.write_text(json.dumps(doubted))
    assert list_restriction_codes(bubbleviz.simulate(report=saved)) == ["ranks-missing"]
    with pytest.raises(bubbleviz.BubblevizError, match="needs a schedule, stages and microbatches"):
        bubbleviz.simulate("1f1b")


@pytest.mark.parametrize(
    "suffix", [s for renderer in list_renderers() for s in renderer.suffixes if "chunks" not in s]
)
def test_a_report_is_saved_in_the_format_of_the_suffix(suffix: str, tmp_path: Path) -> None:
    report = example(what_if=True)
    file = tmp_path / f"x{suffix}"
    report.save(file)

    assert file.stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


class Tracker:
    """Accepts metrics like a W&B run, the MLflow module and PyTorch's SummaryWriter."""

    def __init__(self) -> None:
        self.logged: dict[str, float] = {}
        self.place: list[object] = []

    def log(
        self, data: dict[str, Any], step: int | None = None, commit: bool | None = None
    ) -> None:
        self.logged |= data
        self.place = [step, commit]

    def log_metrics(
        self,
        metrics: dict[str, float],
        step: int | None = None,
        synchronous: bool | None = None,
        run_id: str | None = None,
    ) -> None:
        self.logged |= metrics
        self.place = [step, synchronous, run_id]

    def add_scalar(
        self, tag: str, scalar_value: float, global_step: int | None = None, walltime: object = None
    ) -> None:
        self.logged[tag] = scalar_value
        self.place = [global_step, walltime]


def test_metrics_go_to_trackers_under_the_names_that_watch_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, took = example(), []
    for names in (["log"], ["log_metrics"], ["add_scalar"]):
        tracker = Tracker()
        report.log(SimpleNamespace(**{name: getattr(tracker, name) for name in names}), 7)
        assert tracker.place[0] == 7
        took.append(tracker.logged)
    tracker = Tracker()
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    report.log(SimpleNamespace(info=SimpleNamespace(run_id="id"), data=None), 7)
    assert tracker.place == [7, None, "id"]
    report.log(tmp_path / "scalars", 7)
    accumulator = EventAccumulator(str(tmp_path / "scalars")).Reload()
    events = {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}

    assert took[0] == took[1] == took[2] == tracker.logged
    assert took[0]["bubbleviz/bubble_ratio/schedule"] == report.bubble_ratio
    assert took[0]["bubbleviz/iteration_duration_seconds"] == 0.0335
    parts = [value for name, value in took[0].items() if "/bubble_part_ratio/" in name]
    assert sum(parts) == pytest.approx(report.bubble_ratio)
    assert {t: e.value for t, (e,) in events.items()} == pytest.approx(took[0])
    assert {e.step for (e,) in events.values()} == {7}
    with pytest.raises(
        bubbleviz.BubblevizError,
        match="cannot log to an object of type int; pass a Weights & Biases",
    ):
        report.log(5)


def test_a_loaded_report_is_plotted_like_the_measured_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = example()
    report.save(tmp_path / "report.json")
    loaded = bubbleviz.load(tmp_path / "report.json")
    assert isinstance(loaded, LoadedReport)

    figure: dict[str, Any] = {"iteration": 2, "rank": 3, "width": "89mm", "style": "paper"}
    for view in ({}, figure):
        assert loaded.plot(**view).svg == report.plot(**view).svg
    loaded.plot(causes=True).save(tmp_path / "x.svg")
    for name in ("y.svg", "y.tex", "y.json"):
        loaded.save(name)
        report.save(f"measured-{name}")
        assert Path(name).read_bytes() == Path(f"measured-{name}").read_bytes()
    with pytest.raises(bubbleviz.BubblevizError, match=r"use bubbleviz\.analyze\(report\.paths\)"):
        loaded.save("y.csv")
    with pytest.raises(bubbleviz.BubblevizError, match=r"is not a bubbleviz\.View; pass"):
        loaded.save("y.svg", 3)  # type: ignore[arg-type]  # as people do
    with pytest.raises(bubbleviz.BubblevizError, match="there is no rank 4"):
        loaded.plot(rank=4)
    for guess, instead in LoadedReport._hints.items():
        with pytest.raises(AttributeError, match=f"'{guess}'; use {re.escape(instead)}$"):
            getattr(loaded, guess)
        eval(instead, {"report": loaded, "bubbleviz": bubbleviz})
    compared = bubbleviz.compare([loaded, report])
    assert compared.plot().svg == bubbleviz.compare(report, report).plot().svg


@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "zb-v"])
def test_a_loaded_report_has_the_tables_of_the_measured_one(name: str, tmp_path: Path) -> None:
    report = bubbleviz.analyze(FIXTURES / name, what_if=True)
    report.save(tmp_path / "report.json")
    loaded = bubbleviz.load(tmp_path / "report.json")
    assert isinstance(loaded, LoadedReport)
    large = msgspec.structs.replace(loaded, timeline=None)

    for read in (loaded, large):
        assert list(read.ratios) == list(report.ratios)
        assert repr(read.ratios) == repr(report.ratios)
        assert list(read.causes) == list(report.causes)
        assert repr(read.causes) == repr(report.causes)
        assert repr(read.what_if()) == repr(report.what_if())
        pandas.testing.assert_frame_equal(
            read.what_if().to_pandas(), report.what_if().to_pandas(), rtol=1e-12
        )
        pandas.testing.assert_frame_equal(read.stages.to_pandas(), report.stages.to_pandas())
    assert loaded.to_dict()["what_if"] == report.to_dict()["what_if"]
    operations = loaded.to_pandas()
    assert {"busy_ns", "chunk", "phase", "stage", "virtual_stage"} < {*operations.columns}
    pandas.testing.assert_frame_equal(operations, report.to_pandas()[[*operations.columns]])
    with pytest.raises(bubbleviz.BubblevizError, match=r"use bubbleviz\.analyze\(report\.paths\)"):
        large.to_pandas()


def test_a_loaded_report_without_simulated_schedules_says_how_to_get_them(tmp_path: Path) -> None:
    example().save(tmp_path / "report.json")
    loaded = bubbleviz.load(tmp_path / "report.json")
    assert isinstance(loaded, LoadedReport)

    with pytest.raises(
        bubbleviz.BubblevizError, match=r"analyze\(report\.paths, what_if=True\), or"
    ):
        loaded.what_if()


def test_a_loaded_report_on_idle_time_has_the_causes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    measured = bubbleviz.idle(FIXTURES / "1f1b")
    measured.save("idle.json")
    loaded = bubbleviz.load("idle.json")
    assert isinstance(loaded, LoadedIdleReport)

    assert list(loaded.causes) == list(measured.causes)
    assert repr(loaded.causes) == repr(measured.causes)
    assert repr(bubbleviz.compare(loaded, measured)) == repr(bubbleviz.compare(measured, measured))
    loaded.save("copy.json")
    assert Path("copy.json").read_bytes() == Path("idle.json").read_bytes()
    with pytest.raises(bubbleviz.BubblevizError, match=r"use bubbleviz\.idle\(report\.paths\)"):
        loaded.save("x.svg")
    for guess, instead in LoadedIdleReport._hints.items():
        with pytest.raises(AttributeError, match=f"'{guess}'; use {re.escape(instead)}$"):
            getattr(loaded, guess)
        eval(instead, {"idle": loaded, "bubbleviz": bubbleviz, "path": str(FIXTURES / "1f1b")})


def test_the_errors_for_guessed_arguments_say_what_to_do(tmp_path: Path) -> None:
    report, idle = example(), bubbleviz.idle(FIXTURES / "1f1b")
    report.save(tmp_path / "report.json")
    loaded: Any = bubbleviz.load(tmp_path / "report.json")
    idle.save(tmp_path / "idle.json")
    calls: dict[Callable[[], object], str] = {
        lambda: bubbleviz.simulate(["1f1b", "gpipe"], 4, 8): "pass one value.*schedule='1f1b'",  # type: ignore[arg-type]
        lambda: report.plot(iterations=[1, 2]): r"plot has no argument iterations;.*plot\(1, 2\)",  # type: ignore[call-arg]
        lambda: loaded.plot(iterations=[1]): r"plot has no argument iterations;.*plot\(1, 2\)",
        lambda: idle.plot(width="89mm"): r"plot has no argument width;.*call plot\(\)",  # type: ignore[call-arg]
    }

    for call, message in calls.items():
        with pytest.raises(bubbleviz.BubblevizError, match=message):
            call()
    for summary in (report.summary, loaded.summary, idle.summarize().summary):
        with pytest.raises(TypeError, match=r"use report\.summary without parentheses"):
            summary()
    with pytest.raises(AttributeError, match=r'use compared\.save\("x\.csv"\)'):
        bubbleviz.compare(report, report).to_pandas  # type: ignore[attr-defined]  # noqa: B018


def test_reports_are_loaded_and_compared(tmp_path: Path) -> None:
    slow_run, fixed_run = (
        bubbleviz.analyze(simulate_job(job).written(tmp_path / f"{number}.csv"))
        for number, job in enumerate((Job(rank={6: 1.5}), Job()))
    )
    slow_run.save(tmp_path / "before.json")
    saved = bubbleviz.load(tmp_path / "before.json")
    compared = bubbleviz.compare(saved, fixed_run)

    assert saved.bubble_ratio == slow_run.bubble_ratio
    assert isinstance(saved, bubbleviz.RunSummary)
    simulated_from = [bubbleviz.simulate("zb-h1", report=source) for source in (saved, slow_run)]
    assert repr(simulated_from[0]) == repr(simulated_from[1])
    assert compared.followed[1][0].verdict == "kept"
    assert repr(compared) == repr(bubbleviz.compare(tmp_path / "before.json", tmp_path / "1.csv"))
    with pytest.raises(bubbleviz.BubblevizError, match="at least two"):
        bubbleviz.compare(saved)


def test_compared_and_simulated_runs_are_plotted_and_saved(tmp_path: Path) -> None:
    report, path = example(), str(FIXTURES / "1f1b")
    compared = bubbleviz.compare([report, path, path])
    compared.plot(width="89mm", style="paper").save(tmp_path / "compared.svg")
    compared.save(tmp_path / "compared.json")
    document = json.loads((tmp_path / "compared.json").read_text(encoding="utf-8"))

    assert [run.title for run in compared.runs] == ["run 1", path, path]
    assert repr(compared) == repr(bubbleviz.compare(report, path, path))
    assert 'width="89mm"' in (tmp_path / "compared.svg").read_text(encoding="utf-8")
    assert json.loads(json.dumps(compared.to_dict())) == document
    assert "<table>" in compared._repr_html_()
    for name in ("1f1b", "zb-h1"):
        ideal = bubbleviz.simulate(name, 4, 8)
        assert isinstance(ideal, Ideal)
        assert ideal.plot(causes=True)._repr_svg_().startswith("<?xml")
        ideal.save(tmp_path / f"{name}.csv")
        assert bubbleviz.analyze(FIXTURES / "1f1b", plan=tmp_path / f"{name}.csv").plan is not None
        assert ideal.to_dict()["makespan_ms"] == ideal.makespan_ms
    with pytest.raises(bubbleviz.BubblevizError, match="cannot be drawn; draw interleaved-1f1b"):
        bubbleviz.simulate("1f1b-i", 4, 8).plot()
    with pytest.raises(bubbleviz.BubblevizError, match="at least two"):
        bubbleviz.compare([report])
    assert issubclass(type(compared), Comparison)


def test_idle_time_has_kernels_by_name_and_a_picture(tmp_path: Path) -> None:
    report = bubbleviz.idle(FIXTURES / "1f1b")
    report.save(tmp_path / "idle.json")
    report.plot().save(tmp_path / "idle.svg")
    document = json.loads((tmp_path / "idle.json").read_text(encoding="utf-8"))
    loaded = bubbleviz.load(tmp_path / "idle.json")
    longest = report.kernels[0]

    assert (tmp_path / "idle.svg").read_text(encoding="utf-8") == report._repr_svg_()
    assert report.kernels[longest.name] == longest
    assert longest.time_ns == max(kernel.time_ns for kernel in report.kernels)
    assert sum(cause.idle_ns for cause in report.causes) == report.idle_ns
    longest_cause = report.causes[0]
    assert report.causes[longest_cause.name].meaning == report.meaning[longest_cause.name]
    assert sum(report.causes.to_pandas()["share"]) == pytest.approx(1)
    assert longest_cause.name in repr(report.causes)
    assert len(repr(report.activities)) < 100 * len(report.activities)
    frame = report.kernels.to_pandas()
    assert frame["time_ns"].to_list() == [kernel["time_ns"] for kernel in document["kernels"]]
    assert list(frame.columns) == ["name", "work_class", "count", "time_ns"]
    assert json.loads(json.dumps(report.to_dict())) == document
    assert loaded.to_dict() == report.to_dict()
    compared = bubbleviz.compare(report, loaded)
    assert repr(compared) == repr(bubbleviz.compare([loaded, loaded]))
    with pytest.raises(bubbleviz.BubblevizError, match="a comparison of idle time has no operat"):
        compared.plot()


def test_communication_has_totals_by_name(tmp_path: Path) -> None:
    report = bubbleviz.nccl(write_ring(tmp_path))
    report.save(tmp_path / "nccl.json")
    report.save(tmp_path / "operations.csv")
    document = json.loads((tmp_path / "nccl.json").read_text(encoding="utf-8"))
    names = list(report.totals.to_pandas().columns)

    assert type(report) is bubbleviz.NcclReport
    assert repr(report).startswith("<NcclReport: ")
    assert json.loads(json.dumps(report.to_dict())) == document
    for total, entry in zip(report.totals, document["totals"], strict=True):
        assert [getattr(total, name) or None for name in names] == [entry[name] for name in names]
    assert report.totals[report.totals[0].name] == report.totals[0]
    assert "Communication, longest first" in repr(report.totals)
    assert "<table>" in report._repr_html_()
    with pytest.raises(bubbleviz.BubblevizError, match=r"must end in one of \.json, \.csv"):
        report.save(tmp_path / "x.svg")
