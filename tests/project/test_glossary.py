# SPDX-License-Identifier: Apache-2.0
"""One word, one thing: pages and public names use the words of docs/glossary.md, and no other."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

#: Written by hand: the pages of results are the words of what was stored.
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(p for p in DOCS.rglob("*.md") if p.parent.name != "results" and p.name != "glossary.md"),
]


def glossary() -> dict[str, list[str]]:
    """Word -> what must not stand in its place."""
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", (DOCS / "glossary.md").read_text(), re.M
    )
    return {word: others.split(", ") for word, others in rows if word != "word"}


WORDS = glossary()


@functools.cache
def prose(page: Path) -> str:
    """Return a page without its code, in one line, so that words stay together.

    What people type into the search is in their words, and left out.
    """
    text = re.sub(r"<!-- search: .*?-->", "", page.read_text(), flags=re.S)
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    return " ".join(re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text).split())


def as_words(name: str) -> str:
    """Return a public name as words: `GoldenMismatchError` as golden mismatch error."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", name).lower()


def public_names() -> list[str]:
    """The names that docs/api.md lists."""
    return re.findall(r"^\| `(\w+)` \|", (DOCS / "api.md").read_text(), re.M)


def uses(text: str, word: str) -> bool:
    """Whether a word stands in a text, in either number, at the begin of a sentence or within.

    Only the first letter's case is free: ULPs is not what is called ulps.
    """
    either = rf"[{word[0].lower()}{word[0].upper()}]{re.escape(word[1:])}"
    return re.search(rf"(?<![\w-]){either}s?(?![\w-])", text) is not None


def test_the_glossary_has_about_thirty_words_each_with_what_it_replaces():
    assert 25 <= len(WORDS) <= 40
    others = [other for replaced in WORDS.values() for other in replaced]
    assert all(others)
    assert len(set(others)) == len(others)
    assert not set(others) & set(WORDS)


@pytest.mark.parametrize("word", WORDS)
def test_every_word_is_used(word):
    used = [page.name for page in PAGES if uses(prose(page), word)]
    assert used, f"no page says {word}"


@pytest.mark.parametrize("word", WORDS)
def test_no_other_word_stands_in_its_place(word):
    found = [
        f"{page.relative_to(ROOT)}: {other}"
        for page in PAGES
        for other in WORDS[word]
        if uses(prose(page), other)
    ]
    found += [
        f"{name}: {other}"
        for name in public_names()
        for other in WORDS[word]
        if uses(as_words(name), other.lower())
    ]
    assert found == [], f"say {word}"


def test_what_must_not_be_said_is_found(tmp_path):
    """The control: in prose and in names, and not in code, addresses or other words."""
    page = tmp_path / "page.md"
    page.write_text(
        "Each PLT\nentry has 2 ulps. `warmup` [a](warmup.md) scapegoats\n```\nburn-in\n```\n"
    )
    said = prose(page)
    assert uses(said, "PLT entry")
    assert uses(said, "ulps")
    assert not any(uses(said, other) for other in ("warmup", "burn-in", "goat", "scape"))
    assert not uses("two ULPs", "ulps")
    assert uses("Denormals are flushed", "denormal")
    assert uses(as_words("PltEntryError"), "plt entry")
    assert uses(as_words("warmup_calls"), "warmup")
    assert not uses(as_words("ulp_error"), "ulps")
