# SPDX-License-Identifier: Apache-2.0
"""What is kept of a result in ``benches/results``: what pages and tests read, in seven digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

#: Significant digits of a number that is not whole.
DIGITS: Final = 7
#: A number so near to 1, or to twice that near to a half, keeps all of its digits.
NEAR: Final = 1e-3

Document = dict[str, Any]

#: Of one contender in one comparison: single runs, and parts of them.
_RUNS: Final = "runs_ns launch_ns wall_ns empty_ns"
#: Of a cell, what its search measured of parts of the model, and the plans that it did not take.
_SEARCH: Final = (
    "unit_ns unit_profiled_ns format_change_ns compile_ns plans plan plan_distances uniform "
    "regret_over_roofline uniform_regret_over_roofline"
)
#: And the clocks of the GPU beside every run, and the names that are keys, too.
_MEASUREMENTS: Final = {
    "cells/members/*": "name",
    "cells/*_measurement": "gpu",
    "cells/*_measurement/timings/*": f"{_RUNS} name",
}
_MODELS: Final = {
    "end_to_end/members/*": "name",
    "end_to_end/measurement": "gpu",
    "end_to_end/measurement/timings/*": f"{_RUNS} name",
}

#: Name of a file -> place in it -> keys that are left out there. A place is a path of keys, which
#: goes through lists; ``*`` is any key.
LEFT_OUT: Final[dict[str, dict[str, str]]] = {
    "certificates/*": {
        "rows": "format digest_method sha256 chunk_digests normal_chunk_digests examples "
        "histogram_ulp",
    },
    "compile_chains_*": {"rows": "layers"},
    "compile_compilers_*": _MODELS,
    "compile_layers_*": {
        "rows": "first_call_ns graph_breaks disagree failures",
        "rows/timings/*": "launch_ns low_ns high_ns caveats",
        "rows/speedup": "eager* compile?*",
        "rows/speedup/*": "over low high verdict",
    },
    "compile_models*": _MODELS,
    "compile_oracle*": {"cells": _SEARCH, **_MEASUREMENTS},
    "compile_predictor_*": {
        "rows": "runs_ns timings first_call_ns graph_breaks disagree failures",
    },
    "compile_profiled*": {"cells": f"{_SEARCH} members fresh_measurement", **_MEASUREMENTS},
    "compile_transformers_*": {"rows": "layers"},
    "compile_triton*": {"*": "runs_ns"},
    "foreign_suites*": {"suites/runs/*": "not_passed"},
    # The operators by which stock parts; those of repro are shown.
    "same": {"models/differ/std/*": "first", "models/differ/corem/*": "first"},
    "rewriting_gains*": {
        "rows": "search_limit distance",
        "rows/graphs": "details notes not_kept times_ns called_ns check constants backend",
        "rows/graphs/before": "intermediates intermediate_bytes peak_bytes",
        "rows/graphs/after": "intermediates intermediate_bytes peak_bytes",
    },
}


def summarised(name: str, document: Document) -> Document:
    """Return a document without what :data:`LEFT_OUT` lists for its name, in fewer digits.

    Places from which something is left out are named under ``left_out_of``. The summary of a
    summary is the summary itself.
    """
    for pattern, places in LEFT_OUT.items():
        if fnmatchcase(name, pattern):
            paths = [(*place.split("/"), key) for place, keys in places.items()
                     for key in keys.split()]  # fmt: skip
            kept: Document = _without(document, paths)
            return _rounded({**kept, "left_out_of": places})
    return _rounded(document)


def _without(value: Any, paths: Sequence[tuple[str, ...]]) -> Any:
    """Return a value without what lies at the ends of paths that begin in it."""
    if isinstance(value, list):
        return [_without(part, paths) for part in value]
    if not isinstance(value, dict) or not paths:
        return value
    kept = {}
    for key, part in value.items():
        inner = [path[1:] for path in paths if fnmatchcase(key, path[0])]
        if () not in inner:
            kept[key] = _without(part, inner)
    return kept


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return rounded(value) if isinstance(value, float) else value


def rounded(value: float) -> float:
    """Return a number in seven digits, or in more where fewer would say something else.

    How far a share is from 1, or an error from half an ULP, stays. And no number ends in 5, so that
    it rounds to fewer digits as before. A large whole number, as of nanoseconds, is an integer.
    """
    if not math.isfinite(value):
        return value
    if value == int(value):
        return int(value) if abs(value) >= 1000 else value
    halves = round(2 * value)
    if halves and abs(2 * value - halves) < NEAR and abs(value) < 2:
        return value
    for digits in range(DIGITS, 17):
        text = f"{value:.{digits}g}"
        if not text.partition("e")[0].rstrip("0.").endswith("5"):
            return float(text)
    return value
