# SPDX-License-Identifier: Apache-2.0
"""Calls that an interrupt does not break off."""

from __future__ import annotations

import signal
import threading

import pytest

from pytest_udftorch.base.interrupts import undisturbed


class Interrupted(BaseException):
    pass


@pytest.fixture
def interrupting():
    def interrupt(number, frame):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupt_ends_the_wait_and_not_the_call(interrupting):
    lock, go_on, ended = threading.Lock(), threading.Event(), threading.Event()

    def run():
        with lock:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            go_on.wait(60)
        ended.set()

    with pytest.raises(Interrupted):
        undisturbed(run)
    assert lock.locked()
    go_on.set()
    assert ended.wait(60)
    assert not lock.locked()


def test_it_returns_and_raises_what_the_call_does():
    assert undisturbed(lambda: threading.current_thread().name) == "udftorch-undisturbed"
    with pytest.raises(ZeroDivisionError):
        undisturbed(lambda: 1 // 0)
