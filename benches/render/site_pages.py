# SPDX-License-Identifier: Apache-2.0
"""Pages of the site that no file under docs/ holds. MkDocs loads this as a hook (mkdocs.yml).

The reference of the command and of pytest's options is made of their parsers, that of the API of
the list in docs/api.md, and the pages of the notebooks of what `benches.render.site` ran. Links to
files outside of docs/ lead to their pages on the site, or become plain text.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]

#: What `benches.render.site` makes before it calls MkDocs: pictures, and notebooks with outputs.
PARTS: Final = ROOT / "build" / "site-parts"

#: Files outside of docs/ -> their pages.
OUTSIDE: Final = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
#: The page that stands for a file which has none of its own.
_INSTEAD: Final = {"README.md": "README.md"}


# The command and the options -----------------------------------------------------------------


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its verbs, in the order of the help."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from parsers(verb)


def command_page() -> str:
    """Return the reference of the command ``udftorch``, from its parsers."""
    from pytest_udftorch.cli.command import make_parser

    lines = ["# The command udftorch", "", "What `udftorch --help` says, for each verb.", ""]
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "90"
    try:
        for parser in parsers(make_parser()):
            lines += [f"## {parser.prog}", "", "```text", parser.format_help().rstrip(), "```", ""]
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return "\n".join(lines)


class _Options:
    """Takes the plugin's options as pytest's parser would."""

    def __init__(self) -> None:
        self.options: list[tuple[str, str]] = []
        self.values: list[tuple[str, str]] = []

    def getgroup(self, *_: str) -> _Options:
        return self

    def addoption(self, name: str, *, help: str, metavar: str = "", **_: Any) -> None:
        self.options.append((f"{name}={metavar}" if metavar else name, help))

    def addini(self, name: str, help: str, **_: Any) -> None:
        self.values.append((name, help))


def options_page() -> str:
    """Return the reference of pytest's options and ini values, from what declares them."""
    from pytest_udftorch.plugin.options import add_options

    found = _Options()
    add_options(found)  # type: ignore[arg-type]
    lines = ["# Options of pytest", "", "[The plugin](../plugin.md) shows them at work.", ""]
    for title, rows in (("option", found.options), ("ini value", found.values)):
        lines += ["", f"| {title} | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {text.replace('|', '&#124;')} |" for name, text in rows]
    return "\n".join(lines) + "\n"


def api_page() -> str:
    """Return the reference of the API: the docstrings of the names that docs/api.md lists."""
    lines = ["# API", "", "The docstrings of the [public names](../api.md).", ""]
    for section in (ROOT / "docs" / "api.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        module = section.partition("\n")[0].strip("`")
        names = re.findall(r"^\| `(\w+)` \|", section, re.M)
        lines += [f"## {module}", ""]
        for name in names:
            lines += [f"::: {module}.{name}", "    options:", "      heading_level: 3", ""]
    return "\n".join(lines)


# Notebooks -----------------------------------------------------------------------------------


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown: its cells, with what they printed and showed."""
    import nbformat

    parts = []
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += [_output(output) for output in cell.outputs]
    link = f"[Download this notebook]({path.name})"
    return "\n\n".join([*filter(None, parts), link]) + "\n"


def _output(output: Any) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="outputs">{data["text/html"]}</div>'
    text = output.get("text") or data.get("text/plain", "")
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""


# Links ---------------------------------------------------------------------------------------


def relinked(markdown: str, source: str, page: str) -> str:
    """Return a page whose links lead to pages of the site.

    Args:
        markdown: the page.
        source: the file that it comes from, in the repository: ``docs/guide.md``.
        page: where it lies on the site: ``guide.md``.
    """

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match["text"], match["target"], match["anchor"] or ""
        if "://" in target or not target:
            return match.group()
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if file.startswith("docs/"):
            to = file.removeprefix("docs/")
        elif file in OUTSIDE or file in _INSTEAD:
            to = OUTSIDE.get(file) or _INSTEAD[file]
        else:
            return text
        return f"[{text}]({posixpath.relpath(to, posixpath.dirname(page) or '.')}{anchor})"

    return _outside_code(
        markdown, r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)]*)?\)", link
    )


def plain_fences(markdown: str) -> str:
    """Return a page whose fences say a language and no more, or a title.

    On pages whose blocks are run, a second word says which block is a file, the output of another
    or a step of a build. Python-Markdown takes no fence with such a word for code.
    """

    def fence(match: re.Match[str]) -> str:
        titled = f' title="{match["file"]}"' if match["file"] else ""
        return f"{match['language']}{titled}"

    return re.sub(
        r"^(?P<language> *```\w+) (?:file=(?P<file>\S+)|\w+)$", fence, markdown, flags=re.M
    )


def _outside_code(markdown: str, pattern: str, change: Any) -> str:
    parts = re.split(r"(^ *```.*?^ *```[^\n]*$)", markdown, flags=re.M | re.S)
    return "".join(p if i % 2 else re.sub(pattern, change, p) for i, p in enumerate(parts))


# MkDocs --------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and pictures that no file under docs/ holds."""
    from mkdocs.structure.files import File

    made = {
        "reference/cli.md": command_page(),
        "reference/options.md": options_page(),
        "reference/api.md": api_page(),
    }
    for name, page in OUTSIDE.items():
        made[page] = relinked((ROOT / name).read_text(encoding="utf-8"), name, page)
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        ran = PARTS / "notebooks" / notebook.name
        page = f"notebooks/{notebook.stem}.md"
        made[page] = notebook_page(ran if ran.exists() else notebook)
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    for picture in sorted((PARTS / "pictures").glob("*.png")):
        name = f"pictures/{picture.name}"
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


#: Pages that the search offers after those which explain: every word is somewhere on them.
LATER: Final = ("results/", "reference/api", "changelog", "contributing", "notebooks/")
#: Of these, what somebody wants who types its title.
SOUGHT: Final = ("results/accuracy.md",)


def search_words(markdown: str) -> list[str]:
    """Return what ``<!-- search: nan, overflow -->`` says that people type who want a page."""
    found = re.search(r"<!-- search: (.*?) -->", markdown, re.S)
    return [] if found is None else [" ".join(word.split()) for word in found[1].split(",")]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to files outside of docs/ lead to their pages; tell the search what people type."""
    name = page.file.src_uri
    if name.startswith(LATER) and name not in SOUGHT:
        page.meta["search"] = {"boost": 0.2}
    if words := search_words(markdown):
        page.meta["tags"] = words
    if page.file.generated_by:
        return markdown
    up = posixpath.relpath("pictures", posixpath.dirname(name) or ".")

    def picture(match: re.Match[str]) -> str:
        made = {
            shade: f"![{match[2]}]({up}/{match[1]}{suffix}.png#only-{shade})"
            for shade, suffix in (("light", ""), ("dark", "-dark"))
            if (PARTS / "pictures" / f"{match[1]}{suffix}.png").exists()
        }
        if len(made) == 1:
            # The only picture serves both.
            return next(iter(made.values())).partition("#")[0] + ")"
        return " ".join(made.values())

    pictured = re.sub(r"<!-- picture: ([\w-]+): (.*?) -->", picture, markdown)
    return plain_fences(relinked(pictured, f"docs/{name}", name))
