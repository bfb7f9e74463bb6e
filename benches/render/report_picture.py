# SPDX-License-Identifier: Apache-2.0
"""The picture of the README: the report on LeNet, trained on MNIST under std and corem.

    python -m benches.render.report_picture [--out docs/results/report.png] [--page watch.html]

Needs Chromium. The page is the one that ``udftorch report`` writes for the same profiles.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn import functional as F

from benches.data import mnist
from benches.data.models.lenet import LeNet
from benches.data.samples import Samples
from benches.render import browser
from pytest_udftorch import patched, watch
from pytest_udftorch.watch import Profile

DEFAULT = Path(__file__).parents[2] / "docs" / "results" / "report.png"

#: Pixels of the picture: the page's findings and its chart.
WIDTH, HEIGHT = 1200, 950


def profile(library: str, digits: Samples) -> Profile:
    """Train for an epoch, test, and return what was counted."""
    torch.manual_seed(0)
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # The histograms take every block: the picture is about ranges, not about overhead.
    with patched(library, profile="timed", profile_stride=1) as session:
        for batch in torch.randperm(len(digits.train_targets)).split(50):
            optimizer.zero_grad()
            F.nll_loss(model(digits.train_inputs[batch]), digits.train_targets[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            model(digits.test_inputs)
    return session.profile


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, render, photograph."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.render.report_picture", description=__doc__
    )
    parser.add_argument("--out", type=Path, default=DEFAULT, metavar="PNG")
    parser.add_argument("--page", type=Path, metavar="HTML", help="keep the page as well")
    options = parser.parse_args(arguments)
    path = browser.find()
    if path is None:
        print("report_picture: there is no Chromium here. Install it.", file=sys.stderr)
        return 2
    digits = mnist.load()
    profiles = [profile(library, digits) for library in ("std", "corem")]
    with tempfile.TemporaryDirectory() as scratch:
        page = options.page or Path(scratch) / "report.html"
        text = watch.profiles_html(profiles, title=f"LeNet on {digits.source}")
        page.write_text(text, encoding="utf-8")
        with browser.page(path) as tab:
            tab.size(WIDTH)
            tab.open(page.resolve().as_uri())
            tab.screenshot(options.out, HEIGHT)
            if tab.problems:
                print("report_picture:", *tab.problems, sep="\n", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
