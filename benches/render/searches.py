# SPDX-License-Identifier: Apache-2.0
"""What people type into the search of the site, and the page that has to come first.

    python -m benches.render.searches [SITE]

It asks the search of a built site in a headless Chromium, and prints what comes first.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from benches.render import browser
from benches.render.site import SITE

#: Words -> the pages of which one has to be the first that the search finds.
SEARCHES: Final[Mapping[str, tuple[str, ...]]] = {
    "nondeterminism": ("reproduce/same_weights",),
    "deterministic": ("reproduce/same_weights", "reproduce/contract"),
    "bitwise": ("reproduce/same_weights", "reproduce/contract"),
    "reproducibility": ("reproduce/same_weights",),
    "different results batch size": ("diagnose/diff", "reproduce/summation"),
    "batch invariant": ("reproduce/summation", "reproduce/contract_compiled"),
    "different results cpu gpu": ("diagnose/diff", "reproduce/contract_cuda"),
    "different results torch.compile": ("diagnose/diff_compiled",),
    "compare two models": ("diagnose/diff",),
    "install": ("index", "tutorial", "guide"),
    "without compiler": ("guide",),
    "getting started": ("tutorial",),
    "nan": ("diagnose/diff", "watch/profile", "why/overflow"),
    "overflow": ("why/overflow",),
    "inf": ("diagnose/diff", "why/overflow", "plugin"),
    "flaky test tolerance": ("diagnose/golden", "diagnose/blame"),
    "flaky test": ("diagnose/blame",),
    "allclose": ("diagnose/golden",),
    "expected values": ("diagnose/golden",),
    "correctly rounded": ("why/correct_rounding", "prove/verification"),
    "ulp": ("prove/verification", "glossary"),
    "accuracy": ("results/accuracy",),
    "mpfr": ("prove/verification",),
    "certificate": ("prove/verification",),
    "float64": ("prove/float64",),
    "github actions": ("ci",),
    "ci": ("ci",),
    "pytest options": ("reference/options", "plugin"),
    "fixtures": ("plugin",),
    "marker": ("plugin",),
    "command line": ("reference/cli",),
    "profile": ("watch/profile",),
    "benchmark": ("measure/benches", "measure/compile", "neighbours"),
    "torch.compile slow": ("measure/compile",),
    "which layers to compile": ("measure/compile",),
    "triton": ("swap/compiled",),
    "custom function": ("guide", "swap/operators"),
    "replace operator": ("swap/operators",),
    "c++": ("swap/patch", "swap/operators"),
    "mixed precision": ("diagnose/tolerance", "diagnose/sensitivity"),
    "significant digits": ("diagnose/sensitivity",),
    "threads": ("swap/threads_and_ranks",),
    "distributed": ("swap/threads_and_ranks", "reproduce/same_weights"),
    "summation order": ("reproduce/summation",),
    "gelu": ("swap/composites",),
    "windows macos": ("machines",),
    "security": ("security", "threat-model"),
    "coverage": ("swap/coverage",),
}


def firsts(site: Path, chromium: str, searches: Iterable[str]) -> dict[str, str]:
    """Return words -> the page that a site's search finds first; empty where it finds none.

    Args:
        site: the folder of a built site.
        chromium: the browser.
        searches: what is typed.
    """
    found = {}
    with browser.page(chromium) as page:
        page.size(1280)
        for words in searches:
            page.open((site / "index.html").as_uri())
            box = page.tab.locator("[data-md-component=search-query]")
            box.click()
            box.press_sequentially(words)
            links = page.tab.locator("a.md-search-result__link")
            try:
                links.first.wait_for(timeout=15_000)
                page.tab.wait_for_timeout(300)  # the list follows the last key
                address = str(links.first.get_attribute("href"))
            except Exception:  # Playwright's own, which is loaded with the browser
                address = ""
            found[words] = _page(address, site)
    return found


def _page(address: str, site: Path) -> str:
    """Return ``diagnose/diff`` of the address of a result."""
    path = address.partition("?")[0].partition("#")[0].removeprefix(site.as_uri() + "/")
    return posixpath.normpath(path.removesuffix(".html")) if path else ""


def main(site: Path = SITE) -> int:
    """Print what comes first, and return 1 if a page that should does not."""
    chromium = browser.find()
    if chromium is None:
        print("No Chromium is here to ask the search.", file=sys.stderr)
        return 2
    wrong = 0
    for words, first in firsts(site, chromium, SEARCHES).items():
        right = first in SEARCHES[words]
        wrong += not right
        hint = "" if right else f"   wanted: {' or '.join(SEARCHES[words])}"
        print(f"{'ok   ' if right else 'WRONG'} {words:34} {first or '-'}{hint}")
    print(f"{len(SEARCHES) - wrong} of {len(SEARCHES)} searches find the right page first")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
