# SPDX-License-Identifier: Apache-2.0
"""One class for each kind of mistake that a caller would handle separately.

Every message says what went wrong, why, and what to do about it. All errors derive from
:class:`UdfError`, so ``except pytest_udftorch.UdfError`` catches everything that this
package raises on purpose, and nothing else.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class UdfError(Exception):
    """Base class of every error that this package raises on purpose."""


class UnknownLibraryError(UdfError):
    """No UDF library has the given name, and no folder lies at the given path."""


class LibraryError(UdfError):
    """A folder is not a valid UDF library, lacks a part, or cannot become a library."""


class UnknownFunctionError(UdfError):
    """The library, PyTorch or the oracle does not have the requested function."""


class CompilerNotFoundError(UdfError):
    """There is no clang that can load the pass plugin."""


class CompilerStoppedError(UdfError):
    """A compiler, or a tool beside it, crashed, was killed or took too long."""


class SourceError(UdfError):
    """A UDF's source does not compile, or does not define what its library says."""


class CacheError(UdfError):
    """The build cache cannot be written or read."""


class WrongBuildError(UdfError):
    """A build does not give the results that its library records."""


class CpuLevelError(UdfError):
    """The requested CPU level does not exist, or this CPU does not have it."""


class CudaFormError(UdfError):
    """Functions have no such form for a GPU, or Triton's libdevice cannot take it."""


class NativeError(UdfError):
    """A native part is missing, does not compile, or does not fit this torch."""


class TorchNotFoundError(UdfError):
    """torch is not installed, or its libtorch_cpu.so cannot be rebound."""


class UnsupportedHostError(UdfError):
    """This operating system, processor, C library or Python is not supported."""


class PrivateNameError(UdfError):
    """The installed torch or Triton lacks a private name that this package needs."""


class SwapError(UdfError):
    """No torch operator went through a rebound slot, or its result is not the UDF's."""


class RestoreError(UdfError):
    """On exit a slot held neither the session's function nor the one found on entry."""


class SessionStateError(UdfError):
    """A session is entered twice, or is not open where it, or a compiled model, is used."""


class RanksDifferError(UdfError):
    """A rank of the process group has other sessions than the others, or none."""


class SessionBusyError(UdfError):
    """The functions cannot change now: a thread, a session or a CUDA graph is in the way."""


class OperatorError(UdfError):
    """An operator cannot be replaced, or a UDF at operator level fails or calls itself."""


class PatchError(UdfError):
    """A patched libtorch cannot be made or found, or does not compute the library's bits."""


class ProfileError(UdfError):
    """A profile cannot be taken as asked for, or profiles cannot be added up."""


class ProfileFileError(UdfError):
    """A profile's file cannot be created or read, is in use, or is not the file of a profile."""


class GoldenError(UdfError):
    """Golden values cannot be stored or read, or do not belong to what is checked."""


class GoldenMismatchError(UdfError, AssertionError):
    """A result is not within what golden values allow."""


class CompareError(UdfError):
    """Files cannot be compared with each other, or not within the limits asked for."""


class NoProfileError(UdfError):
    """There is no profile to read: none was written, or profiling is off."""


class PackageMissingError(UdfError):
    """An optional package, library or tool is needed for what was asked."""


class CoverageError(UdfError):
    """There is no run whose coverage could be counted, or it cannot be stored or read."""


class DiagnosisError(UdfError):
    """A difference, or what matters, cannot be found as asked for, or cannot be stored."""


class RunError(UdfError):
    """A run that is to be compared fails, cannot be repeated, or calls no operator.

    Attributes:
        recording: of a run that failed, the part that was recorded; else None.
    """

    recording: Any = None


class SummationError(UdfError):
    """An order of additions cannot be read, or followed, as it was asked for."""


class OutsideContractError(UdfError):
    """A run called an operator that is outside of the contract, under ``strict``."""


class EquivalenceError(UdfError):
    """Two programs cannot be compared by the box test: it decides multi-linear ones alone."""


class RewriteError(UdfError):
    """A graph cannot be rewritten as it was asked for, or a rule is malformed or unsound."""


class CertificateError(UdfError):
    """A certificate cannot be read, written, merged or exported."""


class CheckError(UdfError):
    """Values cannot be checked: there are none, they do not fit, or nothing decides."""


class JournalError(UdfError):
    """A journal cannot be read or written, is damaged, or belongs to something else."""


class VerifyError(UdfError):
    """A function cannot be verified as asked for, or a worker process failed."""


class DeviceMissingError(UdfError):
    """This machine, or this torch build, does not have the device."""


class DisagreementError(UdfError):
    """A form of a model gives a result farther from the reference than allowed."""


class ExecutorError(UdfError):
    """An executor does not exist, or its form of a model cannot be made or called."""


class ExecutorUnavailableError(UdfError):
    """An executor does not serve this device, dtype or torch build."""


class MeasureError(UdfError):
    """A measurement cannot be made of these options, inputs, devices or samples."""


class PlanError(UdfError):
    """A plan cannot be searched for as asked, read or written, or is of another model."""


class UntraceableModelError(UdfError):
    """A model cannot be traced: hooks, or control flow that depends on the data."""


class RanksDifferWarning(UserWarning):
    """A rank of the process group has other sessions than the others, or none."""


class ProfileLossWarning(UserWarning):
    """Records of a profile could not be written; the run continued without them."""


__all__ = [name for name in dir() if name.endswith(("Error", "Warning"))]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that offers the names nearest to ``name``, or lists all of them."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(repr(c) for c in close)}?"
    if choices:
        return f"Known: {', '.join(choices)}."
    return "There are none."
