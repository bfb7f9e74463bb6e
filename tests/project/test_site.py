# SPDX-License-Identifier: Apache-2.0
"""The site: its generated pages, its links, its recipes, its notebooks."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from benches.render import browser, docstring_examples, searches, site, site_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def nav_pages(part):
    if isinstance(part, str):
        yield part
    else:
        for below in part.values() if isinstance(part, dict) else part:
            yield from nav_pages(below)


def test_the_navigation_has_every_page():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    made = {"reference/cli.md", "reference/options.md", "reference/api.md"}
    made |= set(site_pages.OUTSIDE.values()) | {f"notebooks/{n.stem}.md" for n in NOTEBOOKS}
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    found = list(nav_pages(config["nav"]))
    assert len(found) == len(set(found))
    assert set(found) == made | written
    assert config["theme"]["font"] is False


def test_the_reference_of_the_command_is_made_of_its_parsers():
    page = site_pages.command_page()
    for verb in ("run", "verify", "report", "diff", "setup cache", "doctor"):
        assert f"\n## udftorch {verb}\n" in page
        assert f"usage: udftorch {verb}" in page
    assert "--against" in page


def test_the_reference_of_the_options_is_made_of_what_declares_them():
    page = site_pages.options_page()
    assert "| `--udf-lib=NAME_OR_PATH` | Run with" in page
    assert "| `--udf-strict` | Fail" in page
    assert page.count("\n| `--udf-") >= 10
    assert page.count("\n| `udf_") >= 9


def test_the_reference_of_the_api_has_every_public_name():
    page = site_pages.api_page()
    listed = re.findall(r"^\| `(\w+)` \|", (DOCS / "api.md").read_text(), re.M)
    assert page.count("\n::: ") == len(listed)
    assert "::: pytest_udftorch.watch.Profile\n" in page


@pytest.mark.parametrize(
    ("text", "source", "page", "want"),
    [
        ("[a](../CONTRIBUTING.md#x)", "docs/guide.md", "guide.md", "[a](contributing.md#x)"),
        ("[a](../README.md)", "docs/guide.md", "guide.md", "[a](README.md)"),
        ("[a](docs/api.md)", "CHANGELOG.md", "changelog.md", "[a](api.md)"),
        (
            "[a](../swap/cuda.md)",
            "docs/results/reach.md",
            "results/reach.md",
            "[a](../swap/cuda.md)",
        ),
        ("[a](tests/README.md)", "CONTRIBUTING.md", "contributing.md", "a"),
        ("[a](https://x.org/b.md)", "docs/guide.md", "guide.md", "[a](https://x.org/b.md)"),
        ("[a](#here)", "docs/guide.md", "guide.md", "[a](#here)"),
        ("```c\nx[a](b)\n```", "docs/guide.md", "guide.md", "```c\nx[a](b)\n```"),
    ],
)
def test_links_to_other_files_lead_to_their_pages(text, source, page, want):
    assert site_pages.relinked(text, source, page) == want


@pytest.mark.parametrize(
    ("fence", "want"),
    [
        ("```c file=user.c", '```c title="user.c"'),
        ("```text output", "```text"),
        ("  ```sh build", "  ```sh"),
        ("```python", "```python"),
        ("```", "```"),
    ],
)
def test_a_fence_says_its_language_alone(fence, want):
    assert site_pages.plain_fences(f"a\n{fence}\nb\n```\n") == f"a\n{want}\nb\n```\n"


def test_every_fence_of_every_page_is_one_that_the_site_knows():
    known = re.compile(r'```(\w+( title="[^"]+")?)?')
    for page in DOCS.rglob("*.md"):
        text = site_pages.plain_fences(page.read_text())
        fences = [line.strip() for line in text.splitlines() if line.lstrip().startswith("```")]
        assert [f for f in fences if not known.fullmatch(f)] == [], page.name
        assert len(fences) % 2 == 0, page.name


def anchors(page):
    """Return the anchors of a page's headings, as GitHub and MkDocs make them."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def lost_anchors(pages):
    """Return the links of pages to headings that their targets lack."""
    lost = []
    for page in pages:
        for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text()):
            file = (page.parent / target).resolve() if target else page
            if file.suffix == ".md" and anchor not in anchors(file):
                lost.append(f"{page.name}: {target}#{anchor}")
    return lost


def test_every_link_to_a_heading_finds_it(tmp_path):
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    assert lost_anchors(pages) == []
    bad = tmp_path / "bad.md"
    bad.write_text("# Here\n[a](#here) [b](#there)\n")
    assert lost_anchors([bad]) == ["bad.md: #there"], "the control"


def test_the_recipe_for_ci_runs_what_exists():
    (recipe,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "ci.md").read_text(), re.S)
    job = yaml.safe_load(recipe)["jobs"]["correctly-rounded"]
    steps = job["steps"]
    assert job["strategy"]["matrix"] == {"library": ["std", "corem"]}
    assert all(("uses" in step) != ("run" in step) for step in steps)
    commands = " ".join(step.get("run", "") for step in steps)
    known = site_pages.options_page()
    options = re.findall(r"--udf-[a-z-]+", commands)
    assert len(options) == 3
    assert all(f"`{option}" in known for option in options)
    (cache,) = (step for step in steps if "actions/cache" in step.get("uses", ""))
    assert cache["with"]["path"] == "~/.cache/pytest_udftorch"
    extras = re.search(r"pytest_udftorch\[(.*?)\]", commands)[1].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) <= set(project["optional-dependencies"])


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["title"] == project["name"]
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_notebooks_are_stored_without_outputs(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 3
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_notebooks_run_and_show_no_path_of_the_machine(notebook, tmp_path):
    pytest.importorskip("nbclient", reason="make site installs it")
    site.run_notebook(notebook, tmp_path / notebook.name)
    page = site_pages.notebook_page(tmp_path / notebook.name)
    assert "<table>" in page
    for path in (str(ROOT), str(Path.home()), "/tmp/"):
        assert path not in page


@pytest.mark.slow
def test_a_notebook_that_fails_is_an_error(tmp_path):
    client = pytest.importorskip("nbclient", reason="make site installs it")
    text = NOTEBOOKS[0].read_text().replace("assert not pair.failures", "assert pair.failures")
    (tmp_path / "bad.ipynb").write_text(text)
    with pytest.raises(client.exceptions.CellExecutionError, match="AssertionError"):
        site.run_notebook(tmp_path / "bad.ipynb", tmp_path / "out.ipynb")


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_the_network_for_nothing(tmp_path):
    pytest.importorskip("mkdocs", reason="make site installs it")
    site.build(tmp_path / "site")
    size = site.size(tmp_path / "site")
    assert size["pages"] >= 40
    assert size["bytes"] < 20e6
    reference = (tmp_path / "site" / "reference" / "api.html").read_text()
    assert "blockquote" not in reference
    assert "doctest" not in reference
    unrendered = [p.name for p in (tmp_path / "site").rglob("*.html") if "```" in p.read_text()]
    assert unrendered == []
    chromium = browser.find()
    if chromium is None:
        pytest.skip("no Chromium looks at the site; it was built")
    assert site.look(tmp_path / "site", tmp_path / "looks", chromium) == []
    assert len(list((tmp_path / "looks").glob("*.png"))) == 20


@pytest.mark.slow
def test_the_search_finds_the_right_page_first(tmp_path):
    pytest.importorskip("mkdocs", reason="make site installs it")
    chromium = browser.find()
    if chromium is None:
        pytest.skip("no Chromium asks the search")
    site.build(tmp_path / "site")
    found = searches.firsts(tmp_path / "site", chromium, searches.SEARCHES)
    wrong = {words: page for words, page in found.items() if page not in searches.SEARCHES[words]}
    assert wrong == {}
    nothing = searches.firsts(tmp_path / "site", chromium, ["qwertzuiop"])
    assert nothing == {"qwertzuiop": ""}, "the control"


def test_searches_are_in_words_of_users_and_lead_to_pages():
    made = {"index", "security", "reference/cli", "reference/options"}
    written = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}
    assert len(searches.SEARCHES) >= 40
    for pages in searches.SEARCHES.values():
        assert set(pages) <= made | written


def test_a_page_says_what_people_type_who_want_it():
    text = "# A\n\n<!-- search: not a\n number, nan -->\n\ntext"
    assert site_pages.search_words(text) == ["not a number", "nan"]
    assert site_pages.search_words("# A\n\ntext") == []
    with_words = [p for p in DOCS.rglob("*.md") if site_pages.search_words(p.read_text())]
    assert len(with_words) >= 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [("[lost](nowhere.md)", "nowhere.md"), ("[lost](guide.md#nowhere)", "#nowhere")],
)
def test_a_broken_link_stops_the_build(tmp_path, text, message, capfd):
    pytest.importorskip("mkdocs", reason="make site installs it")
    import shutil

    shutil.copytree(DOCS, tmp_path / "docs")
    with (tmp_path / "docs" / "tutorial.md").open("a") as page:
        page.write(f"\n{text}\n")
    config = (ROOT / "mkdocs.yml").read_text()
    hook = ROOT / "benches" / "render" / "site_pages.py"
    (tmp_path / "mkdocs.yml").write_text(config.replace("benches/render/site_pages.py", str(hook)))
    with pytest.raises(site.SiteError, match="found mistakes"):
        site.build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert message in capfd.readouterr().err


# Examples of docstrings --------------------------------------------------------------


def test_an_example_of_a_docstring_is_code():
    text = (
        "Do it.\n\n"
        "    >>> with do():  # doctest: +SKIP\n    ...     pass\n    >>> 1\n    1\n\n"
        "More.\n\n>>> 2\n2"
    )
    assert docstring_examples.fenced(text) == (
        "Do it.\n\n"
        "    ```pycon\n    >>> with do():\n    ...     pass\n    >>> 1\n    1\n    ```\n\n"
        "More.\n\n```pycon\n>>> 2\n2\n```"
    )
    assert docstring_examples.fenced("No example.\n\nArgs:\n    x: 1.") == (
        "No example.\n\nArgs:\n    x: 1."
    )


def test_a_picture_follows_the_colours_of_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(site_pages, "PARTS", tmp_path)
    file = SimpleNamespace(src_uri="why/overflow.md", generated_by=None)

    def changed(text):
        return site_pages.on_page_markdown(text, SimpleNamespace(file=file, meta={}))

    text = "<!-- picture: page: The page -->"
    assert changed(text) == ""
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "page.png").touch()
    assert changed(text) == "![The page](../pictures/page.png)"
    (tmp_path / "pictures" / "page-dark.png").touch()
    assert changed(text) == (
        "![The page](../pictures/page.png#only-light) "
        "![The page](../pictures/page-dark.png#only-dark)"
    )
