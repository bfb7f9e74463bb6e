# SPDX-License-Identifier: Apache-2.0
"""Installs packages with uv, which unpacks with all cores, from where pip is set to look for them.

uv reads none of pip's settings. Arguments: those of ``uv pip install``.
"""

import ast
import os
import subprocess
import sys


def settings() -> dict[str, str]:
    """Return pip's settings by their names; the environment's go before those of files."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    found = {}
    for line in sorted(said.splitlines(), key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        found[key.rpartition(".")[2]] = str(ast.literal_eval(value))
    return found


def main() -> None:
    """Become uv."""
    of_pip = settings()
    options = ["--index-strategy", "unsafe-best-match"]  # as pip does
    if of_pip.get("no-index", "0").lower() not in ("0", "false", "no", "off"):
        options.append("--no-index")
    for name, option in (("index-url", "--default-index"), ("extra-index-url", "--index"),
                         ("find-links", "--find-links")):  # fmt: skip
        for place in of_pip.get(name, "").split():
            options += [option, place]
    if "cert" in of_pip:
        os.environ.setdefault("SSL_CERT_FILE", of_pip["cert"])
    if of_pip.get("no-cache-dir"):
        options.append("--no-cache")
    os.execv(
        os.path.join(os.path.dirname(sys.executable), "uv"),
        ["uv", "pip", "install", "--python", sys.executable, *options, *sys.argv[1:]],
    )


main()
