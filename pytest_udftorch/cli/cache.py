# SPDX-License-Identifier: Apache-2.0
"""The cache of builds: ``udftorch setup cache``, ``prune``, ``prebuild`` and ``export``."""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

from pytest_udftorch.cli.status import Subparsers


def add(actions: Subparsers) -> None:
    """Add what ``udftorch setup`` does with builds."""
    show = actions.add_parser("cache", help="list the builds in the cache")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=show_builds)
    prune = actions.add_parser(
        "prune", help="remove what killed builds left, and builds; none that a process uses"
    )
    prune.add_argument(
        "--to", type=float, metavar="MIB", help="cut the cache to this size; by default its limit"
    )
    prune.set_defaults(run=prune_builds)
    for name, run, text in (
        ("prebuild", prebuild_here, "build what sessions and profiles on this machine need"),
        ("export", export_builds, "the same, and copy it to a folder for UDFTORCH_PREBUILT"),
    ):
        action = actions.add_parser(name, help=text)
        if name == "export":
            action.add_argument("folder", type=Path, help="where the copy goes")
        action.add_argument(
            "libraries", nargs="*", metavar="library", help="names or paths; by default corem"
        )
        action.set_defaults(run=run)


def show_builds(options: argparse.Namespace) -> int:
    """List the builds in the cache, the one that was used last first."""
    from pytest_udftorch.swap.toolchain import cache

    root = cache.cache_folder()
    rows: list[dict[str, Any]] = []
    for stored in reversed(cache.builds(root)):
        used = datetime.datetime.fromtimestamp(stored.used_ns / 1e9, datetime.UTC)
        facts = stored.facts
        what = " ".join(str(facts[k]) for k in ("library", "cpu_level", "torch") if k in facts)
        rows.append(
            {
                "build": stored.folder.name,
                "what": what,
                "bytes": stored.bytes,
                "used": used.isoformat(timespec="seconds"),
            }
        )
    total = sum(row["bytes"] for row in rows)
    if options.json:
        said = {"folder": str(root), "limit_bytes": round(cache.limit()), "builds": rows}
        print(json.dumps(said, indent=1))
        return 0
    for row in rows:
        size = row["bytes"] / 1024
        print(f"{row['used'][:16]}  {size:8,.0f} KiB  {row['build']:40}  {row['what']}".rstrip())
    print(f"{root}: {len(rows)} builds, {total / 2**20:.1f} of {cache.limit() / 2**20:.0f} MiB")
    return 0


def prune_builds(options: argparse.Namespace) -> int:
    """Remove leftovers, and the builds that were used longest ago."""
    from pytest_udftorch.errors import CacheError
    from pytest_udftorch.swap.toolchain import cache

    if options.to is not None and not 0 <= options.to < float("inf"):
        raise CacheError(f"--to {options.to} is not a size in MiB. Give a number from 0.")
    root = cache.cache_folder()
    before = cache.builds(root)
    if root.is_dir():
        cache.tidy(root, None if options.to is None else options.to * 2**20)
    after = cache.builds(root)
    freed = sum(b.bytes for b in before) - sum(b.bytes for b in after)
    print(f"{root}: {len(before) - len(after)} builds removed, {freed / 2**20:.1f} MiB")
    return 0


def prebuild_here(options: argparse.Namespace) -> int:
    """Build what sessions and profiles of libraries need on this machine."""
    from pytest_udftorch.cli import prebuild

    prebuild.run(prebuild.for_this_machine(options.libraries or ["corem"]))
    return 0


def export_builds(options: argparse.Namespace) -> int:
    """Build, and copy the builds into a store."""
    from pytest_udftorch.cli import prebuild
    from pytest_udftorch.swap.toolchain import wheel_builds as prebuilt

    with prebuilt.recording():
        prebuild.run(prebuild.for_this_machine(options.libraries or ["corem"]))
        count = prebuilt.export(options.folder)
    print(f"{options.folder}: {count} builds; use them with {prebuilt.VARIABLE}={options.folder}")
    return 0
