# SPDX-License-Identifier: Apache-2.0
"""Installs packages into the running environment: one resolver, and one set of versions.

    install.py plan [REQUIREMENT ...]      choose a version of every package that any target needs
    install.py get [--no-deps] WHAT ...    install some of them: requirements, or [extra]

A plan covers the extras of ``EXTRAS`` at once, so that what `make demo` installs is what
`make test` needs: torch and torchvision that belong together, and nothing is replaced later. What
is installed already stays if the requirements and pip's constraints allow it. uv resolves and
unpacks, with all cores, where it can be had, and otherwise pip; never both for one plan. uv reads
none of pip's settings, so it is told them: indexes, constraints, certificates.
"""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

#: What `make test` installs; the demo's packages are among them.
EXTRAS = ("torch", "verify", "profile", "bench", "test")

PLAN = Path(sys.prefix) / "versions.txt"
#: Options of pip that are written as a list of places, and uv's for them.
PLACES = {
    "index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links",
    "constraint": "--constraint",
}  # fmt: skip


def settings():
    """Return pip's settings by their names; the environment's go before those of files."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    found = {}
    for line in sorted(said.splitlines(), key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        found[key.rpartition(".")[2]] = str(ast.literal_eval(value))
    return found


def project():
    """Return the requirements of the project's own extras, by extra."""
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    needed = table["project"]
    found = {"": [*needed["dependencies"], *table["build-system"]["requires"]]}
    return found | needed["optional-dependencies"]


def uv_command():
    """Return the beginning of a command of uv, None if it is not installed."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        return None
    of_pip = settings()
    options = ["--python", sys.executable, "--index-strategy", "unsafe-best-match"]  # as pip does
    if of_pip.get("no-index", "0").lower() not in ("0", "false", "no", "off"):
        options.append("--no-index")
    for name, option in PLACES.items():
        for place in of_pip.get(name, "").split():
            options += [option, place]
    if "cert" in of_pip:
        os.environ.setdefault("SSL_CERT_FILE", of_pip["cert"])
    if of_pip.get("no-cache-dir"):
        options.append("--no-cache")
    return [str(uv), "pip", "install", *options]


def pip_command():
    """Return the beginning of a command of pip."""
    # Python compiles what it imports. Most of it is never imported.
    return [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-compile",
    ]  # fmt: skip


def digest(requirements):
    """Return what a plan depends on: the requirements and pip's constraints."""
    texts = [*sorted(requirements)]
    for place in settings().get("constraint", "").split():
        path = Path(place)
        texts.append(path.read_text(encoding="utf-8") if path.is_file() else place)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def by_uv(requirements):
    """Return name -> version of what uv would install, None if there is no uv or it fails."""
    command = uv_command()
    if command is None:
        return None
    done = subprocess.run(
        [*command, "--dry-run", *requirements], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"install: uv finds no versions, so pip is asked:\n{done.stderr}", file=sys.stderr)
        return None
    return dict(re.findall(r"^ \+ ([^=\s]+)==(\S+)", done.stderr, re.M))


def by_pip(requirements):
    """Return name -> version of what pip would install."""
    done = subprocess.run(
        [*pip_command(), "--dry-run", "--report", "-", *requirements],
        check=False, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.returncode)  # pip has said why
    report = json.loads(done.stdout[done.stdout.index("{") :])
    return {one["metadata"]["name"]: one["metadata"]["version"] for one in report["install"]}


def installed():
    """Return name -> version of what is installed."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return {one["name"]: one["version"] for one in json.loads(said)}


def plain(name):
    """Return a package's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def plan(more):
    """Choose versions, unless they are chosen."""
    known = project()
    requirements = [r for extra in ("", *EXTRAS) for r in known[extra]] + more
    wanted = digest(requirements)
    if PLAN.exists() and PLAN.read_text(encoding="utf-8").splitlines()[1:2] == [f"# {wanted}"]:
        return
    new, resolver = by_uv(requirements), "uv"
    if new is None:
        new, resolver = by_pip(requirements), "pip"
    chosen = {plain(n): v for n, v in installed().items()} | {plain(n): v for n, v in new.items()}
    chosen.pop("pytest-udftorch", None)
    lines = [f"# {resolver}", f"# {wanted}", *(f"{n}=={v}" for n, v in sorted(chosen.items()))]
    PLAN.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"install: {resolver} chose {len(new)} packages, torch {chosen.get('torch')} among them")


def get(what):
    """Install some of the packages of the plan."""
    options = ["--no-deps"] if "--no-deps" in what else []
    known = project()
    requirements = []
    for one in what:
        if one.startswith("["):
            requirements += known[one.strip("[]")]
        elif not one.startswith("-"):
            requirements.append(one)
    resolver = PLAN.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    command = uv_command() if resolver == "uv" else None
    if command is None:
        command = pip_command()
    else:
        command.append("--quiet")
    sys.exit(subprocess.call([*command, "--constraint", str(PLAN), *options, *requirements]))


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    {"plan": plan, "get": get}[verb](words)
