"""Pages that the site build generates from the package. The build itself checks links."""

from __future__ import annotations

from pathlib import Path

from scripts.pages import gallery, reference


def test_every_option_has_a_line(tmp_path: Path) -> None:
    commands = reference.write(tmp_path)
    analyze = (tmp_path / "reference" / "analyze.md").read_text()

    assert {"analyze", "gate", "plan"} <= set(commands)
    assert "| `--window` `" in analyze
    assert "heading: bubbleviz.analyze" in (tmp_path / "reference" / "python.md").read_text()
    assert f"({commands[-1]}.md)" in (tmp_path / "reference" / "index.md").read_text()


def test_a_run_of_the_gallery_is_shown_as_its_command_gives_it(tmp_path: Path) -> None:
    gpipe_run = next(run for run in gallery.RUNS if run.name == "gpipe")

    assert list(gallery.write(tmp_path / "runs", tmp_path, [gpipe_run])) == ["gpipe"]

    page = (tmp_path / "gallery" / "gpipe.md").read_text()
    assert "    bubbleviz analyze gpipe/ -o gpipe.svg -o gpipe.html\n" in page
    assert "gpipe" in page[page.index("<pre") : page.index("</pre>")]
    assert "\n\n" not in page[page.index("<pre") : page.index("</pre>")]
    assert (tmp_path / "gallery" / "gpipe-report.svg").is_file()
    assert 'href="gpipe.html"' in (tmp_path / "gallery" / "index.md").read_text()
