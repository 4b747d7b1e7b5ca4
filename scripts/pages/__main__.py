"""Build the site into ``build/site``: hand-written pages, guides, gallery and reference.

The reference is generated from the commands and docstrings of the package. The runs in the gallery
are simulated, analyzed and drawn. A broken link fails the build.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from latex2mathml.converter import convert

from scripts.pages import gallery, reference

ROOT = gallery.ROOT
_HERE = Path(__file__).parent
#: Folder for the site's sources, and folder for the finished site.
_WORK, _SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
#: Patterns that match formulas on separate lines and formulas within text. The second pattern is
#: used only for pages that match the first one.
_BLOCK, _INLINE = re.compile(r"\$\$(.+?)\$\$", re.DOTALL), re.compile(r"\$([^$\n]+)\$")
_SHOWN = re.compile(r"^<!-- screen: (bubbleviz .+) -->$", re.MULTILINE)
#: Matches a mention of a guide, which becomes a link.
_GUIDE = re.compile(r"`bubbleviz guide ([a-z-]+)`")
_REPOSITORY = "https://github.com/bubbleviz/bubbleviz/blob/main/"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the site and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/site", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the gallery of the last build")
    options = parser.parse_args(arguments)
    docs = _WORK / "docs"
    if not options.keep:
        shutil.rmtree(_WORK, ignore_errors=True)
    shutil.copytree(_HERE / "docs", docs, dirs_exist_ok=True)
    if not options.keep or not (docs / "gallery").exists():
        for name in gallery.write(_WORK / "runs", docs):
            print(f"gallery: {name}", flush=True)
    commands = reference.write(docs)
    _write_guides(docs)
    for page in docs.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        rendered = _SHOWN.sub(lambda match: gallery.terminal(ROOT, match[1]), text)
        if _BLOCK.search(rendered):
            rendered = _BLOCK.sub(lambda match: convert(match[1], display="block"), rendered)
            rendered = _INLINE.sub(lambda match: convert(match[1]), rendered)
        if rendered != text:
            page.write_text(rendered, encoding="utf-8")
    settings = (_HERE / "mkdocs.yml").read_text(encoding="utf-8")
    pages = "".join(f"\n      - gallery/{one.name}.md" for one in gallery.RUNS)
    settings = settings.replace("- gallery/index.md", f"- gallery/index.md{pages}")
    # Guides that are not in mkdocs.yml come first.
    guides = {page.name for page in (docs / "guides").glob("*.md")}
    listed_guides = set(re.findall(r"guides/([\w-]+\.md)", settings))
    pages = "".join(f"\n      - guides/{name}" for name in sorted(guides - listed_guides))
    settings = settings.replace("- guides/index.md", f"- guides/index.md{pages}")
    pages = "".join(f"\n      - {name}: reference/{name}.md" for name in commands)
    settings = settings.replace("- reference/index.md", f"- reference/index.md{pages}")
    (_WORK / "mkdocs.yml").write_text(settings, encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--clean"]
    # Without this variable, the theme advertises its successor.
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([*command, "-f", str(_WORK / "mkdocs.yml")], env=quiet, check=False)
    if not done.returncode:
        print(f"Site: {_SITE / 'index.html'}")
    return done.returncode


def _write_guides(docs: Path) -> None:
    """Copy the guides, the changelog, the security policy and the picture of the example."""
    (docs / "guides").mkdir(exist_ok=True)
    guides = sorted((ROOT / "bubbleviz" / "guides").glob("*.md"))
    names = {guide.stem for guide in guides}
    rows = []
    for guide in guides:
        text = guide.read_text(encoding="utf-8")
        title = text.partition("\n")[0].removeprefix("# ")
        rows.append(f"| [{guide.stem}]({guide.name}) | {title} |")
        linked = _GUIDE.sub(lambda m: f"[{m[1]}]({m[1]}.md)" if m[1] in names else m[0], text)
        (docs / "guides" / guide.name).write_text(linked, encoding="utf-8")
    index = (
        "# Guides",
        "",
        "The same pages are in the terminal: `bubbleviz guide NAME`.",
        "",
        *("| guide | title |", "|---|---|"),
        *rows,
        "",
    )
    (docs / "guides" / "index.md").write_text("\n".join(index), encoding="utf-8")
    for name, source in {"changelog": "CHANGELOG.md", "security": ".github/SECURITY.md"}.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = re.sub(r"\]\((?!https?:)(?:\.\./)?([^)]+)\)", rf"]({_REPOSITORY}\1)", text)
        (docs / f"{name}.md").write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "fixtures" / "1f1b.svg", docs / "1f1b.svg")


if __name__ == "__main__":
    sys.exit(main())
