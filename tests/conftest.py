"""What every test needs: pytest's own tester, and nested runs that are nobody's workers."""

import os

pytest_plugins = ["pytester"]


def pytest_configure():
    # Runs of pytest within a test would take themselves for workers of the run that tests them.
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        os.environ.pop(name, None)
