# SPDX-License-Identifier: Apache-2.0
"""The trace of a profile lies on the same time line as that of torch.profiler."""

from __future__ import annotations

import json
import os
import threading
import time

import numpy as np
import torch
from counts import META
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records import layout
from pytest_udftorch.swap.records.profile import Profile


def test_an_event_around_an_operator_encloses_it_in_the_merged_trace(tmp_path):
    strings = layout.StringTable()
    events = np.zeros(9, layout.EVENT)
    x = torch.randn(100_000)
    meta = {**META, "clocks": record.clocks(), "pid": os.getpid()}
    utc = []
    with torch_profile(activities=[ProfilerActivity.CPU]) as profiler:
        for event in events:
            event["start_ns"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            before = time.time_ns()
            torch.exp(x)
            utc.append((before, time.time_ns()))
            event["end_ns"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            event["thread"] = threading.get_native_id()
            event["function"] = strings.id("exp")
            time.sleep(0.02)
    profiler.export_chrome_trace(str(tmp_path / "torch.json"))
    profile = Profile.from_arrays(strings, meta, cells=layout.empty_cells(0), events=events)
    profile.save_trace(tmp_path / "both.json", tmp_path / "torch.json")
    trace = json.loads((tmp_path / "both.json").read_text())
    spans = trace["traceEvents"]
    ours = [s for s in spans if s.get("cat") == "udf"]
    theirs = [s for s in spans if s.get("name") == "aten::exp"]
    assert len(ours) == len(theirs) == len(events)
    # Kineto fits the processor's counter to UTC. How far its own spans lie outside of the readings
    # of UTC around them depends on the machine; ours may add a few microseconds to that.
    base = trace["baseTimeNanoseconds"]
    slack_us = 5 + max(
        max((before - base) / 1e3 - span["ts"], span["ts"] + span["dur"] - (after - base) / 1e3, 0)
        for (before, after), span in zip(utc, theirs, strict=True)
    )
    pairs = list(zip(ours, theirs, strict=True))
    for mine, torchs in pairs:
        assert mine["ts"] - slack_us <= torchs["ts"]
        assert torchs["ts"] + torchs["dur"] <= mine["ts"] + mine["dur"] + slack_us
        # On the same line of the picture.
        assert (mine["pid"], mine["tid"]) == (torchs["pid"], torchs["tid"])
    # Negative control: the operators are farther apart than the slack, so another clock or a
    # shift by one would be seen.
    assert slack_us < 10_000
    for mine, torchs in zip(ours, theirs[1:], strict=False):
        assert mine["ts"] + mine["dur"] + slack_us < torchs["ts"]
