# SPDX-License-Identifier: Apache-2.0
"""What Python runs at the start of each process of ``udftorch run``, which puts this folder first.

It stands in front of the interpreter's own ``sitecustomize``, if there is one, and calls it.
"""

import importlib
import os
import sys


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    this = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)
        try:
            from pytest_udftorch.swap.session import startup
        except ImportError:
            pass  # an interpreter in which the package is not installed
        else:
            startup.start()


_start()
