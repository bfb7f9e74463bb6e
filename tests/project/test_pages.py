# SPDX-License-Identifier: Apache-2.0
"""The pages for readers: their links lead somewhere, and the overviews are complete."""

import re
from pathlib import Path

import pytest

from benches.render import house
from pytest_udftorch.cli.command import VERBS

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), ROOT / "tests" / "README.md", *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_files_lead_to_them(page):
    prose = re.sub(r"^\s*```.*?^\s*```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#\s]+)", prose):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_index_lists_every_page():
    docs = ROOT / "docs"
    index = (docs / "README.md").read_text()
    for page in docs.rglob("*.md"):
        assert page.name == "README.md" or f"]({page.relative_to(docs)})" in index


def test_the_table_of_the_house_names_every_folder():
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## The house")[2]
    package = ROOT / "pytest_udftorch"
    wings = [path.parent.name for path in package.glob("*/__init__.py")]
    rooms = [str(path.parent.relative_to(package)) for path in package.glob("*/*/__init__.py")]
    assert len(wings) >= 9
    assert len(rooms) >= 25
    for folder in (*(f"**`{wing}/`**" for wing in wings), *(f"`{room}/`" for room in rooms)):
        assert text.count(f"| {folder} |") == 1, folder


def test_the_floors_are_those_of_the_import_contract(tmp_path):
    """A control: another contract and other docstrings give another table."""
    (tmp_path / "pyproject.toml").write_text(
        '[[tool.importlinter.contracts]]\ntype = "layers"\n'
        'containers = ["pytest_udftorch"]\nlayers = ["__main__", "upper | side", "lower"]\n'
        '[[tool.importlinter.contracts]]\ntype = "layers"\n'
        'containers = ["pytest_udftorch.upper"]\nlayers = ["attic", "hall"]\n'
        '[[tool.importlinter.contracts]]\ntype = "acyclic_siblings"\n'
    )
    for name in ("upper", "upper/attic", "upper/hall", "side", "side/a", "side/b"):
        folder = tmp_path / "pytest_udftorch" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(f'"""What is ``{folder.name}``?\n\nMore."""\n')
    (tmp_path / "pytest_udftorch" / "lower.py").write_text('"""The ground."""\n')
    assert list(house.rows(tmp_path)) == [
        ("1", "**`upper/`**", "What is `upper`?"),
        ("1.1", "`upper/attic/`", "What is `attic`?"),
        ("1.0", "`upper/hall/`", "What is `hall`?"),
        ("1", "**`side/`**", "What is `side`?"),
        ("1.0", "`side/a/`", "What is `a`?"),
        ("1.0", "`side/b/`", "What is `b`?"),
        ("0", "`lower.py`", "The ground."),
    ]


def test_every_folder_of_the_house_says_which_question_it_answers():
    for _, folder, question in house.rows():
        assert question.endswith("?") == folder.strip("*").endswith("/`"), folder


def test_the_chapters_are_the_six_words():
    words = ["swap", "watch", "prove", "measure", "reproduce", "diagnose"]
    assert list(VERBS) == words
    for name in ("README.md", "docs/README.md"):
        found = re.findall(r"^(?:## |\| \*\*)(\w+)", (ROOT / name).read_text(), re.M)
        assert [w.lower() for w in found if w.lower() in words] == words, name
    for word in words:
        assert list((ROOT / "docs" / word).glob("*.md")), word
        assert (ROOT / "pytest_udftorch" / word).is_dir()
        assert (ROOT / "tests" / word).is_dir()


#: Pages that somebody looks something up in, and does not read through.
REFERENCES = {"api.md", "plugin.md", "swap/passes.md"}
MOST_WORDS, MOST_ON_A_PAGE = 60_000, 2_500


def words_of(pages):
    """Return page -> how many words it has."""
    return {page: len(page.read_text(encoding="utf-8").split()) for page in pages}


def test_the_pages_can_be_read(tmp_path):
    docs = ROOT / "docs"
    read = words_of(p for p in docs.rglob("*.md") if p.parent.name != "results")
    assert sum(read.values()) <= MOST_WORDS
    long = {str(p.relative_to(docs)) for p, count in read.items() if count > MOST_ON_A_PAGE}
    assert long <= REFERENCES
    (tmp_path / "long.md").write_text("word " * 2_501)
    assert max(words_of(tmp_path.glob("*.md")).values()) > MOST_ON_A_PAGE, "the control"


def test_measurements_are_one_link_away():
    """A table of figures stands under docs/results, but for one that a reader looks for here."""
    here = {"tutorial.md", "watch/profile_file.md"}
    docs = ROOT / "docs"
    for page in docs.rglob("*.md"):
        if page.parent.name == "results" or str(page.relative_to(docs)) in here:
            continue
        blocks = re.findall(r"<!-- generated: .*?<!-- end -->", page.read_text(), re.S)
        assert all(len(block.split()) < 120 for block in blocks), page.name


def test_the_readme_fits_on_two_screens():
    assert (ROOT / "README.md").read_text().count("\n") <= 130
