"""Files of other profilers are refused with their format and the command that writes a profile."""

from __future__ import annotations

import gzip
from contextlib import suppress
from pathlib import Path

import pytest

from bubbleviz.errors import InputError, ProfileError
from bubbleviz.sources.foreign_formats import FOREIGN_FORMATS
from bubbleviz.sources.paths import find_profiles
from bubbleviz.sources.readers import find_reader, identify_foreign_file
from tests.support.command_line import CommandLine
from tests.support.foreign_files import write_foreign_files
from tests.support.nsys_exports import K, write_profile
from tests.support.operation_tables import write_tables
from tests.support.processes import read_processes
from tests.support.rocm_profiles import write_rpd

#: A part of the sentence for each file, keyed by the file name.
SENTENCES = {
    "config.json": "the configuration of a Primus run, which contains no times; pass the folder",
    "1_results.json": "JSON output of rocprofv3, which cannot be converted to rocpd; profile again "
    "with: rocprofv3 --hip-trace --kernel-trace --memory-copy-trace --marker-trace --output-format "
    "rocpd",
    "1_kernel_trace.csv": "a CSV table of rocprofv3 or rocprof",
    "1_marker_api_trace.csv": "a CSV table of rocprofv3 or rocprof",
    "1_kernel_stats.csv": "a CSV table of rocprofv3 or rocprof",
    "1_agent_info.csv": "a CSV table of rocprofv3 or rocprof",
    "1_pc_sampling_host_trap.csv": "a CSV table of rocprofv3 or rocprof",
    "1_results.otf2": "a trace in OTF2 (Open Trace Format); if rocprofv3 wrote it, profile again",
    "results.csv": "a CSV table of rocprofv3 or rocprof",
    "rocprof.json": "JSON output of rocprof, the predecessor of rocprofv3",
    "rpd.json": "JSON output of rpd2tracing, which was made from an .rpd file; pass the .rpd file",
    "rpd_object.json": "JSON output of rpd2tracing",
    "wall_clock.json": "a JSON summary of rocprof-sys (Omnitrace), which contains only sums",
    "nsys_lines.json": "a JSON export of nsys",
    "unitrace.json": "JSON output of unitrace",
    "unitrace_cut.json": "JSON output of unitrace",
    "unitrace.csv": "a text report of unitrace",
    "unitrace.txt": "a text report of unitrace, which contains only sums",
    "kern_sum.csv": "a report of nsys stats, which contains only a part of the profile; export the "
    "report with: nsys export --type sqlite REPORT.nsys-rep",
    "old_kern_sum.csv": "a report of nsys stats",
    "gpu_trace.csv": "a report of nsys stats",
    "nsys_stats.json": "a report of nsys stats",
    "nsys_2020.csv": "a report of nsys stats",
    "nsys_stats.txt": "a report of nsys stats",
    "nsys_profile.log": "a report of nsys stats",
    "mem_size.csv": "a report of nsys stats",
    "nsys.json": "a JSON export of nsys; export the report with: nsys export --type sqlite",
    "nsys_separate.jsonl": "a JSON export of nsys",
    "nsys_tables.json": "a JSON export of nsys",
    "nvprof.csv": "a text or CSV report of nvprof; profile again with: nsys profile -t cuda,nvtx",
    "nvprof_trace.csv": "a text or CSV report of nvprof",
    "nvprof_old.csv": "a text or CSV report of nvprof",
    "nvprof.log": "a text or CSV report of nvprof",
    "ncu.txt": "a report of Nsight Compute (ncu)",
    "ncu.csv": "a report of Nsight Compute (ncu)",
    "execution_trace.json": "an execution trace of PyTorch (Chakra), which contains operators but "
    "no kernel times; pass the trace that torch.profiler writes with export_chrome_trace",
    "speedscope.json": "a speedscope profile",
    "1_results.pftrace": "a Perfetto trace (protocol buffer), such as a .pftrace file of rocprofv3",
    "report.ncu-rep": "a report of Nsight Compute (ncu), which measures single kernels",
    "perf.data": "a recording of perf, which contains no GPU work",
    "events.out.tfevents.1.host": "a TensorBoard event file",
    "report.h5": "an HDF5 file, such as an HDF5 export of nsys",
    "snapshot.pickle": "a memory snapshot of PyTorch, which contains allocations but no kernels",
    "nvprof.nvvp": "a database of nvprof, whose tables differ from those of Nsight Systems; "
    "profile again with: nsys profile -t cuda,nvtx",
    "nvprof.sqlite": "a database of nvprof",
    "results.db": "a database of rocprof, the predecessor of rocprofv3",
}


def _get_refusal(path: Path) -> str:
    with pytest.raises(ProfileError) as caught:
        find_reader(str(path))
    return str(caught.value)


def test_each_file_is_named_with_the_next_step(tmp_path: Path) -> None:
    files = write_foreign_files(tmp_path)

    assert {file.name for file in files} == set(SENTENCES)
    for file in files:
        sentence = _get_refusal(file)
        assert sentence.startswith(f"{file}: is {SENTENCES[file.name]}")
        assert "\n" not in sentence


def test_every_format_has_a_file(tmp_path: Path) -> None:
    found = {identify_foreign_file(str(file)) for file in write_foreign_files(tmp_path)}

    assert found == set(FOREIGN_FORMATS)


def test_names_do_not_matter(tmp_path: Path) -> None:
    for number, file in enumerate(write_foreign_files(tmp_path)):
        content = file.read_bytes()
        renamed = tmp_path / f"file{number}"
        renamed.write_bytes(content)
        assert _get_refusal(renamed).startswith(f"{renamed}: is {SENTENCES[file.name]}")
        if not content.startswith(b"SQLite"):
            renamed.write_bytes(gzip.compress(content))
            assert _get_refusal(renamed).startswith(f"{renamed}: is {SENTENCES[file.name]}")


@pytest.mark.parametrize("header", ["name,Start,Duration", "Start (ns),End (ns),op"])
def test_a_table_with_a_column_of_nsys_is_not_a_report_of_nsys(header: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"{header}\n1,2,3\n")
    assert find_reader(str(path)).name == "csv"


@pytest.mark.parametrize(
    "text",
    [
        '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "gpu_op", "name": "gemm"}]}',
        '{"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "NVTX_EVENTS"}]}',
        '[{"ph": "X", "name": "ANALYSIS_STEP", "args": {"StringIds": 1}}]',
        '{"schema": "1.0", "rows": []}',
    ],
)
def test_names_in_other_json_do_not_matter(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    assert identify_foreign_file(str(path)) is None


def test_a_recording_that_nsys_did_not_convert_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run 1.qdstrm"
    path.write_bytes(b"\0\1\2")
    assert _get_refusal(path).endswith(f"convert it with: QdstrmImporter -i '{path}'")


def test_a_cut_file_is_refused_without_a_crash(tmp_path: Path) -> None:
    for file in write_foreign_files(tmp_path):
        content = file.read_bytes()[:4096]
        for length in range(0, len(content), max(1, len(content) // 40)):
            file.write_bytes(content[:length])
            identify_foreign_file(str(file))
            with suppress(ProfileError):
                find_reader(str(file))


def test_a_directory_of_tables_names_their_format(tmp_path: Path, cli: CommandLine) -> None:
    host = tmp_path / "host"
    host.mkdir()
    for file in write_foreign_files(tmp_path):
        if file.name.startswith("1_") and file.suffix == ".csv":
            file.rename(host / file.name)
        else:
            file.unlink()

    for command in ("analyze", "idle", "inspect"):
        message = cli.refused(command, tmp_path)
        assert message.startswith(
            f"bubbleviz: {tmp_path}: the directory contains no profile; {host}/1_agent_info.csv "
            "is a CSV table of rocprofv3 or rocprof (like 4 other files); profile again with: "
        )
        assert "looked for" not in message


def test_a_directory_of_other_tables_names_the_columns_that_are_missing(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv"):
        (tmp_path / name).write_text("Name,Sum\ngemm,12\n")
    (tmp_path / "0.txt").write_text("a text, with a comma\n")

    with pytest.raises(InputError) as caught:
        find_profiles([str(tmp_path)])
    assert f"{tmp_path / 'a.csv'} is not a table of operations, because it lacks rank" in str(
        caught.value
    )
    assert "looked for" not in str(caught.value)


def test_a_gzipped_database_in_a_directory_is_named(tmp_path: Path) -> None:
    export = write_profile(tmp_path, [K(1, 2, 1)])
    content = write_rpd(tmp_path / "run.rpd", read_processes(export)).read_bytes()
    for file in list(tmp_path.iterdir()):
        file.unlink()
    packed = tmp_path / "run.rpd.gz"
    packed.write_bytes(gzip.compress(content))

    with pytest.raises(InputError, match=r"run\.rpd\.gz is a gzipped SQLite database; unpack it"):
        find_profiles([str(tmp_path)])


def test_profiles_are_read_next_to_other_files(tmp_path: Path) -> None:
    for file in write_foreign_files(tmp_path):
        if file.suffix in (".sqlite", ".db"):
            file.unlink()
    export = write_profile(tmp_path, [K(1, 2, 1)], name="run.sqlite")

    assert [file.path for file in find_profiles([str(tmp_path)])] == [str(export)]


def test_a_table_of_operations_may_have_columns_of_a_profiler(tmp_path: Path) -> None:
    table = write_tables(tmp_path, [(0, "F", 0, 10), (0, "B", 10, 30)])["csv"]
    header, *rows = table.read_text().splitlines()
    lines = [f"{header},Start_Timestamp,End_Timestamp", *(f"{row},1,2" for row in rows)]
    table.write_text("\n".join(lines) + "\n")

    assert find_reader(str(table)).name == "csv"
