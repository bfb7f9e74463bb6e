# SPDX-License-Identifier: Apache-2.0
"""Fuzz one target of :mod:`fuzz_targets` with coverage, in a process of its own.

    python tests/fuzz_child.py TARGET --corpus DIR --found DIR --seconds N [--wall N]

libFuzzer, as Atheris binds it, chooses the inputs and keeps in the corpus what reaches new
branches of this package. Half of the new inputs are bytes changed by libFuzzer, half are documents
with odd values. A finding does not end the run: the smallest input of each kind is kept. The last
line of the output is JSON with the counts.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import atheris
from atheris.import_hook import AtherisSourceFileLoader

#: Bytes of an input; larger ones only slow the search down.
_MOST = 1 << 16


class Instrumented(MetaPathFinder):
    """Finds the modules of this package, and has Atheris count their branches.

    Atheris' own finder leaves out what an editable install finds.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that another finder makes, with a loader that instruments."""
        if name.partition(".")[0] != "pytest_udftorch":
            return None
        others = (f for f in sys.meta_path if f is not self)
        found = next(filter(None, (f.find_spec(name, path, target) for f in others)), None)
        if found is not None and found.origin and found.origin.endswith(".py"):
            found.loader = AtherisSourceFileLoader(name, found.origin, True)
        return found


class Findings:
    """What was found, the smallest input of each kind.

    Args:
        folder: gets the inputs and, beside each, what it did.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kinds: dict[str, int] = {}

    def add(self, error: BaseException, data: bytes) -> None:
        """Keep an input, unless a smaller one does the same."""
        frames = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if "/pytest_udftorch/" in f.filename
        ]
        where = f"{Path(frames[-1].filename).name} {frames[-1].name}" if frames else str(error)[:40]
        kind = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{type(error).__name__} {where}")
        if len(data) >= self.kinds.get(kind, _MOST * 99):
            return
        self.kinds[kind] = len(data)
        (self.folder / kind).write_bytes(data)
        told = "".join(traceback.format_exception(error))
        (self.folder / f"{kind}.txt").write_text(told, errors="backslashreplace")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--found", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--wall", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Fuzz until the processor time, or the time by the clock, is spent."""
    options = _options()
    sys.meta_path.insert(0, Instrumented())
    import fuzz_targets

    target = fuzz_targets.TARGETS[options.target]
    for name in target.imports:
        importlib.import_module(name)
    warnings.simplefilter("ignore")
    findings = Findings(options.found)
    home = tempfile.TemporaryDirectory(prefix="udf-fuzz-")
    folder = Path(home.name)
    for seed in target.seeds():
        (options.corpus / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
        for _ in range(2):
            try:  # whatever the first call of a reader imports is not the reader's doing
                fuzz_targets.outcome(target, seed, folder)
            except Exception as error:
                last = error
            else:
                last = None
        if last is not None:
            findings.add(last, seed)
    words = folder.with_name(f"{folder.name}.dict")
    texts = ("".join(f"\\x{b:02x}" for b in w) for w in sorted(fuzz_targets.dictionary(target)))
    words.write_text("".join(f'"{text}"\n' for text in texts) or '"0"\n')
    count, began, start = 0, time.process_time(), time.monotonic()

    def once(data: bytes) -> None:
        nonlocal count
        count += 1
        try:
            fuzz_targets.outcome(target, data, folder)
        except BaseException as error:
            findings.add(error, data)
        spent = round(time.process_time() - began, 1)
        if spent > options.seconds or time.monotonic() - start > options.wall:
            told = {"executions": count, "seconds": spent, "findings": len(findings.kinds)}
            print(json.dumps(told), flush=True)
            home.cleanup()
            words.unlink()
            os._exit(0)

    def change(data: bytes, most: int, seed: int) -> bytes:
        choose = random.Random(seed)
        if choose.random() < 0.5:
            new = fuzz_targets.mutated(target, data, choose)
            if new is not None:
                return new[:most]
        return atheris.Mutate(data, most)

    arguments = [
        sys.argv[0], str(options.corpus), f"-dict={words}", f"-seed={options.seed}",
        f"-max_len={_MOST}", "-timeout=120", "-rss_limit_mb=6000", "-verbosity=1",
        f"-artifact_prefix={options.found}/",
    ]  # fmt: skip
    atheris.Setup(arguments, once, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
