# SPDX-License-Identifier: Apache-2.0
"""Settings that spare processor time: two workers share two cores. And counts of faults."""

import gc
import os

import injected
import pytest

# Threads that have nothing to do sleep: OpenMP's would spin, clang's for 200 ms after each loop.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Inductor would start a pool of processes, each of which imports torch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Under load any build may take two seconds, and some tests read all of standard error.
os.environ.setdefault("UDFTORCH_PROGRESS", "0")


def pytest_collection_finish():
    # What is imported by now stays: no later collection has to go through it.
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()


@pytest.fixture
def faults(request):
    """Count what a test injects; see ``injected.Faults``."""
    counted = injected.Faults()
    yield counted
    request.node.user_properties.append(("faults", counted.as_json()))
