# SPDX-License-Identifier: Apache-2.0
"""What do the options, the marker and the fixtures of pytest do?

The installed package registers :mod:`pytest_udftorch.plugin.hooks` as ``udftorch``. Naming this
package, as ``-p pytest_udftorch.plugin`` does, registers the same hooks under the same name, and
only once. PYTEST_DONT_REWRITE: nothing here asserts.
"""

from __future__ import annotations

import pytest

from pytest_udftorch.plugin import hooks
from pytest_udftorch.plugin.hooks import PatchedLibtorch

__all__ = ["PatchedLibtorch"]

_NAME = "udftorch"  # the name of the entry point in pyproject.toml


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the hooks, unless the entry point has done so."""
    if not pluginmanager.has_plugin(_NAME):
        pluginmanager.register(hooks, _NAME)
