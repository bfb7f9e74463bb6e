# SPDX-License-Identifier: Apache-2.0
"""The pages for readers: their links lead somewhere, and the overviews are complete."""

import re
from pathlib import Path

import pytest

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
    house = (ROOT / "CONTRIBUTING.md").read_text().partition("## The house")[2]
    for folder in (ROOT / "pytest_udftorch").iterdir():
        if (folder / "__init__.py").is_file():
            assert f"| `{folder.name}/` |" in house


def test_the_readme_fits_on_two_screens():
    assert (ROOT / "README.md").read_text().count("\n") <= 110
