# SPDX-License-Identifier: Apache-2.0
"""Build the site: run the notebooks, make the pictures, call MkDocs.

    python -m benches.render.site [--quick] [--store FILE]

``--quick`` takes the notebooks as they are, and the pictures that an earlier build made.
``--store`` keeps the size of the site, for docs/results. Pictures need Chromium. The build
downloads nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benches import stored
from benches.render import browser
from benches.render.site_pages import PARTS, ROOT
from pytest_udftorch import UdfError

SITE = ROOT / "build" / "site"

#: Pages that are pictured of the site itself, to be looked at: width, dark.
LOOKS = ((1280, False), (1280, True), (400, False), (400, True))


class SiteError(UdfError):
    """The site cannot be built."""


def run_notebook(path: Path, out: Path) -> None:
    """Run a notebook in a folder of its own, and write it with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        client.execute()
    out.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, out)


def story_files(page: Path) -> dict[str, str]:
    """Return the files that a page of docs/ asks its reader to save: name -> text."""
    text = page.read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", text, re.M | re.S))


def profile_picture(out: Path, chromium: str) -> None:
    """Picture the page of the run in the story of the overflow, on a wide and a narrow screen."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "pooling"  # the page is titled by it
        folder.mkdir()
        for name, text in story_files(ROOT / "docs" / "why" / "overflow.md").items():
            (folder / name).write_text(text)
        options = ("--udf-profile", "--udf-profile-out=out", "-p", "no:cacheprovider", "-q")
        subprocess.run(
            [sys.executable, "-m", "pytest", *options],
            cwd=folder, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        with browser.page(chromium) as page:
            page.open((folder / "out" / "report.html").as_uri())
            for name, width, dark in (
                ("profile", 1280, False),
                ("profile-dark", 1280, True),
                ("profile-narrow", 400, False),
                ("profile-narrow-dark", 400, True),
            ):
                page.size(width, dark=dark)
                page.screenshot(out / f"{name}.png", 900)


def build(site: Path = SITE, config: Path = ROOT / "mkdocs.yml") -> None:
    """Call MkDocs, which fails at any warning.

    Raises:
        SiteError: a tool of the extra ``docs`` is missing, or the site has a mistake.
    """
    for name in ("mkdocs", "material", "mkdocstrings", "nbformat"):
        if importlib.util.find_spec(name) is None:
            raise SiteError(f"{name} is missing. Install it: pip install -e '.[docs]'")
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict",
         "--config-file", str(config), "--site-dir", str(site)],
        cwd=ROOT, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if run.returncode:
        # --quiet would also keep it from counting its warnings.
        told = [line for line in run.stderr.splitlines() if not line.startswith("INFO")]
        print("\n".join(told), file=sys.stderr)
        raise SiteError("MkDocs found mistakes, above. Mend the pages that it names.")


def look(site: Path, out: Path, chromium: str) -> list[str]:
    """Picture some pages of the site; return what a browser complains of or asks elsewhere."""
    out.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    with browser.page(chromium) as page:
        for name in ("index", "tutorial", "why/overflow", "reference/options", "results/results"):
            for width, dark in LOOKS:
                page.size(width, dark=dark)
                page.open((site / f"{name}.html").as_uri())
                wide = page.run("document.documentElement.scrollWidth")
                if wide > width:
                    problems.append(f"{name} is {wide} pixels wide on a screen of {width}")
                shade = "dark" if dark else "light"
                page.screenshot(out / f"{name.replace('/', '-')}-{width}-{shade}.png", 1400)
        if not found_by_search(page, site, "overflow"):
            problems.append("the search finds nothing")
        problems += page.problems
        problems += [url for url in page.requests if not url.startswith(("file:", "data:"))]
    return problems


def found_by_search(page: browser.Page, site: Path, words: str) -> list[str]:
    """Return the titles that the site's search offers for some words."""
    page.size(1280)
    page.open((site / "index.html").as_uri())
    box = page.tab.locator("[data-md-component=search-query]")
    box.click()
    box.press_sequentially(words)
    titles = page.tab.locator(".md-search-result__item h1, .md-search-result__item h2")
    try:
        titles.first.wait_for(timeout=15_000)
    except Exception:  # Playwright's own, which is loaded with the browser
        return []
    return [str(text) for text in titles.all_inner_texts()]


def size(site: Path) -> dict[str, Any]:
    """Return how large the site is."""
    files = [path for path in site.rglob("*") if path.is_file()]
    pages = [path for path in files if path.suffix == ".html"]
    return {
        "mkdocs": metadata.version("mkdocs"),
        "mkdocs_material": metadata.version("mkdocs-material"),
        "pages": len(pages),
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "pages_bytes": sum(path.stat().st_size for path in pages),
        "search_bytes": sum(p.stat().st_size for p in (site / "search").glob("search_index.*")),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the site, look at it, and say how large it is."""
    parser = argparse.ArgumentParser(prog="python -m benches.render.site")
    parser.add_argument("--quick", action="store_true", help="run no notebook, make no picture")
    parser.add_argument("--store", type=Path, metavar="FILE", help="keep the size there")
    options = parser.parse_args(arguments)
    chromium = browser.find()
    if not options.quick:
        for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
            print(f"running {notebook.name}", file=sys.stderr)
            run_notebook(notebook, PARTS / "notebooks" / notebook.name)
        if chromium is None:
            print("no Chromium: the site is built without new pictures", file=sys.stderr)
        else:
            profile_picture(PARTS / "pictures", chromium)
    build()
    problems = look(SITE, PARTS / "looks", chromium) if chromium else []
    for problem in problems:
        print(problem, file=sys.stderr)
    found = size(SITE)
    if options.store:
        stored.save(options.store, "python -m benches.store site", found)
    print(f"{SITE / 'index.html'}: {found['pages']} pages, {found['bytes'] / 1e6:.1f} MB")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
