# SPDX-License-Identifier: Apache-2.0
"""Certificates made up for tests."""

from __future__ import annotations

import hashlib

from pytest_udftorch.prove.verify.certificate import Certificate, Example, Run, Tally

IDENTITY = {
    "cpu_level": "avx512",
    "form": "array",
    "symbol": "__udf_expf_array",
    "flush": False,
    "garbage": False,
    "sparse": False,
    "build_id": "0123456789abcdef",
    "library_sha256": "11" * 32,
    "compiler": "clang version 19",
    "reference": "MPFR 4.2.0",
}

SUBJECT = {
    "function": "exp",
    "dtype": "float32",
    "library": "corem",
    "version": "0.1.0",
    "claim": "correctly-rounded",
    "max_ulp": 0.5,
    "source_sha256": "22" * 32,
}

DOMAIN = {"inputs": "every encoding", "count": 1 << 10, "chunk_bits": 8, "seed": None}


def digest(number):
    return hashlib.sha256(bytes([number])).hexdigest()


def make_run(chunks=range(4), *, wrong=0, ulp=0.4375, salt=0, **identity):
    count = 256 * len(chunks)
    tally = Tally(
        inputs=count,
        wrong=wrong,
        hard=3,
        histogram={0: count - 5, 28: 4, 64: 1},
        examples=(Example((0x3F800000,), 1, 2),) * min(wrong, 1),
        worst_ulp=ulp,
        worst_index=7,
        worst_got=9,
    )
    return Run(
        identity={**IDENTITY, **identity},
        chunks={i: (digest(i + salt), digest(100 + i)) for i in chunks},
        total_chunks=4,
        tally=tally,
        largest={"ulp": ulp, "inputs": ["0x00000007"], "got": "0x00000009", "want": "0x00000009"},
        date="2026-01-02T03:04:05+00:00",
        seconds=1.5,
        machine={"cpu": "x"},
    )


def make(*runs, **subject):
    return Certificate({**SUBJECT, **subject}, DOMAIN, runs or (make_run(),))
