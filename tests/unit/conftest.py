# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that build."""

import builds
import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A build cache of this test's own, of which this process knows nothing."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(folder))
    builds.forget(monkeypatch)
    return folder
