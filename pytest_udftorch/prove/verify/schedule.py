# SPDX-License-Identifier: Apache-2.0
"""What to verify: one form of one function, its inputs, and what judges the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from pytest_udftorch.errors import PackageMissingError, VerifyError
from pytest_udftorch.prove.verify.candidate import (
    OPERATOR,
    SIXTEEN_BITS,
    Candidate,
    address,
    count_hard,
    file_sha256,
)
from pytest_udftorch.prove.verify.candidate_search import (
    DEFAULTS,
    Reference,
    Request,
    find_candidate,
)
from pytest_udftorch.prove.verify.certificate import IDENTITY, MAY_HAVE, MODES, RUN_KEY, SUBJECT
from pytest_udftorch.prove.verify.reference.checker import checker_file, llvmlibc, load_checker
from pytest_udftorch.swap.library.symbols import COMPOSITES

#: The C library's double results are trusted to this many bits. Their largest known errors
#: are a few units of 2**-53 (Gladman, Innocente, Mather, Zimmermann, "Accuracy of
#: Mathematical Functions", 2024: below 8 for these functions), so this leaves room.
MARGIN_BITS: Final = 48
#: Composites in double are some operations more, and an error of the exponent of exp, or of the
#: argument of erfc, counts up to 2**8 times.
COMPOSITE_MARGIN_BITS: Final = 42
#: MPFR judges one input in SAMPLE, even if nothing disagrees.
SAMPLE: Final = 4096


def margin_bits(function: str) -> int:
    """Return to how many bits the double result of a function is trusted."""
    return COMPOSITE_MARGIN_BITS if function in COMPOSITES else MARGIN_BITS


def easy_argument(function: str) -> float:
    """Return an argument that lies in the domain and is hard for no path of corem."""
    return 1.7 if function == "acosh" else 0.7


@dataclass(frozen=True)
class Schedule:
    """Everything that a worker needs to run any chunk.

    Attributes:
        candidate: the function to verify.
        count: inputs of the domain.
        chunk_bits: a chunk has 2**chunk_bits inputs.
        reference: ``llvmlibc``, ``libm`` or ``mpfr``.
        reference_text: names and versions of everything that judges.
        seed: of the pairs.
        flush: denormals are flushed while the candidate runs.
        garbage: vector forms get one true lane among random ones.
        sparse: every input stands among easy ones, so that no block is repaired as a whole.
        sample: MPFR judges one input in ``sample``.
        judge: compare the results; otherwise only take their digests.
        files: role -> (path on the machine that made the schedule, SHA-256).
    """

    candidate: Candidate
    count: int
    chunk_bits: int
    reference: str
    reference_text: str
    seed: int = 0
    flush: bool = False
    garbage: bool = False
    sparse: bool = False
    sample: int = 1
    judge: bool = True
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def total_chunks(self) -> int:
        """Number of chunks."""
        return -(-self.count // self.chunk_size)

    @property
    def chunk_size(self) -> int:
        """Inputs of a chunk; the last one may have fewer."""
        return 1 << self.chunk_bits

    @property
    def beside(self) -> str:
        """What stands beside an input: a key of ``BESIDE_NUMBERS``."""
        return "random" if self.garbage else "easy" if self.sparse else "inputs"

    def identity(self) -> dict[str, Any]:
        """Return what two runs must share to be merged."""
        own = {mode: getattr(self, mode) for mode in MODES} | {"reference": self.reference_text}
        found = {k: own[k] if k in own else getattr(self.candidate, k) for k in IDENTITY}
        more = {k: getattr(self.candidate, k) for k in MAY_HAVE}
        return found | {k: value for k, value in more.items() if value is not None}

    def key(self) -> tuple[Any, ...]:
        """Return what tells this run apart from the others of a certificate."""
        return tuple(self.identity()[k] for k in RUN_KEY)

    def subject(self) -> dict[str, Any]:
        """Return what the certificate is about."""
        return {key: getattr(self.candidate, key) for key in SUBJECT}

    def domain(self) -> dict[str, Any]:
        """Return which inputs there are, and how they are cut into chunks."""
        kind = "every encoding" if self.candidate.arity == 1 else "pairs of reference/pairs.c"
        return {
            "inputs": kind,
            "count": self.count,
            "chunk_bits": self.chunk_bits,
            "seed": self.seed if self.candidate.arity == 2 else None,
        }


def make_schedule(library: str, function: str, request: Request = DEFAULTS) -> Schedule:
    """Decide what to run, and build what it needs.

    Raises:
        VerifyError: garbage lanes without vectors, an input among easy ones where the form takes
            one at a time or the fast path finds them hard, or a 16-bit function of two arguments.
        PackageMissingError: the reference, or a package that it needs, is not installed, or
            it does not have the function.
        The errors of ``find_candidate``.
    """
    candidate = find_candidate(library, function, request)
    _check_beside(candidate, request)
    if request.dtype in SIXTEEN_BITS:
        return _sixteen_bits(candidate, request)
    files = {"checker": checker_file()}
    mpfr = load_checker(files["checker"]).mpfr_version
    chosen, text = _choose_reference(request.reference, function)
    if chosen == "llvmlibc":
        files["reference"] = llvmlibc().path
    if candidate.form != OPERATOR:
        files["candidate"] = candidate.path
    if candidate.hard_counter is not None:
        files["hard"] = candidate.hard_counter
    return Schedule(
        candidate=candidate,
        count=request.pairs if candidate.arity == 2 else 1 << 32,
        chunk_bits=request.chunk_bits,
        seed=request.seed,
        reference=chosen,
        reference_text=f"{text}double-precision C library trusted to 2**-{margin_bits(function)}; "
        f"MPFR {mpfr}",
        flush=request.flush,
        garbage=request.garbage,
        sparse=request.sparse,
        sample=1 if chosen == "mpfr" else SAMPLE,
        files={role: (str(path), file_sha256(path)) for role, path in files.items()},
    )


def _check_beside(candidate: Candidate, request: Request) -> None:
    """Raise an error if what is to stand beside an input cannot, or would show nothing."""
    if request.garbage and candidate.form not in ("v8", "v16"):
        raise VerifyError(
            f"--garbage fills the other lanes of a vector; the form {candidate.form!r} has none. "
            "Choose --form v8 or v16."
        )
    if not request.sparse:
        return
    if candidate.form not in ("array", "v8", "v16"):
        raise VerifyError(
            "--sparse sets every input among easy ones, but the form "
            f"{candidate.form!r} takes one at a time. Choose --form array, v8 or v16."
        )
    if request.garbage:
        raise VerifyError(
            "--sparse and --garbage both say what stands beside an input. Leave out one of the two."
        )
    easy = np.full(1, easy_argument(candidate.function), np.float32)
    counter = candidate.hard_counter
    if counter and count_hard(address(counter, "udfref_hard"), [easy] * candidate.arity):
        raise VerifyError(
            f"The fast path of {candidate.function} in {candidate.library} finds {easy[0]:g} hard, "
            "which --sparse sets beside every input. All blocks would be repaired as a whole, and "
            "what the paths give would not be seen. Verify without --sparse."
        )


def _sixteen_bits(candidate: Candidate, request: Request) -> Schedule:
    if candidate.arity == 2:
        raise VerifyError(
            f"{candidate.function} has 2**32 pairs of {candidate.dtype}; only functions of one "
            "argument are verified in 16 bits."
        )
    return Schedule(
        candidate=candidate,
        count=1 << 16,
        chunk_bits=16,
        reference="mpfr",
        reference_text="MPFR through gmpy2, every result",
        flush=request.flush,
    )


def _choose_reference(reference: Reference, function: str) -> tuple[str, str]:
    if reference in ("auto", "llvmlibc"):
        libc = llvmlibc()
        if function in libc.functions:
            return "llvmlibc", f"LLVM-libc {libc.version}; "
        if reference == "llvmlibc":
            raise PackageMissingError(
                f"LLVM-libc {libc.version} has no correctly rounded {function}. Choose "
                "--reference libm (the double-precision C library with a rounding test, and MPFR "
                "where that leaves doubt) or mpfr (slow)."
            )
        return "libm", ""
    return reference, "MPFR decides every result; " if reference == "mpfr" else ""
