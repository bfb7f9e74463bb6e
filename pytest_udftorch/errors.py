# SPDX-License-Identifier: Apache-2.0
"""One class per mistake a user can make.

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


class LibraryFormatError(UdfError):
    """A folder is not a valid UDF library: its ``udf.toml`` is missing or wrong."""


class ScaffoldError(UdfError):
    """A new library cannot be made where it was asked for."""


class UnknownFunctionError(UdfError):
    """The library, or PyTorch, does not have the requested function."""


class CompilerNotFoundError(UdfError):
    """No clang of the pass plugin's LLVM version was found."""


class CompilerTooOldError(UdfError):
    """The named clang is too old to load the pass plugin."""


class CompilerStoppedError(UdfError):
    """A compiler, or a tool beside it, crashed, was killed or took too long."""


class SourceCompileError(UdfError):
    """A UDF source does not compile; carries the compiler's own message."""


class SignatureError(UdfError):
    """A UDF is missing from its source, or its C type is not the one that its ABI requires."""


class CacheError(UdfError):
    """The build cache cannot be written or read."""


class WrongBuildError(UdfError):
    """A build does not give the results that its library records."""


class CpuLevelError(UdfError):
    """The requested CPU level does not exist, or this CPU does not have it."""


class CudaFormError(UdfError):
    """There is no such form of functions for a GPU, or the library does not have it."""


class CompositesMissingError(UdfError):
    """The library names no activations that are whole functions, or wrong ones."""


class NativeLibraryError(UdfError):
    """The package's own native files are missing or belong to another version."""


class TorchNotFoundError(UdfError):
    """torch is not installed, or its libtorch_cpu.so cannot be rebound."""


class UnsupportedHostError(UdfError):
    """This operating system, processor, C library or Python is not supported."""


class PrivateNameError(UdfError):
    """The installed torch or Triton lacks a private name that this package needs."""


class SymbolsMissingError(UdfError):
    """This libtorch calls a function through no symbol that can be rebound."""


class SwapReachedNothingError(UdfError):
    """The slots were rebound, but a torch operator did not go through them."""


class SwapMismatchError(UdfError):
    """An operator went through a rebound slot, but its result is not the UDF's."""


class RestoreError(UdfError):
    """On exit a slot held neither the session's function nor the one found on entry."""


class SessionStateError(UdfError):
    """A session was entered twice, or used while it is not open."""


class RanksDifferError(UdfError):
    """A rank of the process group has other sessions than the others, or none."""


class ExclusiveTimeoutError(UdfError):
    """A thread did not leave its operator while an exclusive session waited to switch."""


class CompiledElsewhereError(UdfError):
    """A compiled model is called under functions other than those it was compiled with."""


class CompileRunningError(UdfError):
    """The functions cannot change while another thread is running torch.compile."""


class CudaGraphCaptureError(UdfError):
    """A session was opened while a CUDA graph is being captured."""


class LibdeviceError(UdfError):
    """The libdevice of the installed triton cannot take the functions."""


class PythonUdfError(UdfError):
    """A UDF written in Python cannot be compiled, or its file cannot be imported."""


class UnknownOperatorError(UdfError):
    """torch's dispatcher has no operator or overload of the UDF's name."""


class DispatchKeyError(UdfError):
    """A dispatch key does not exist, is not a backend, or has no device on this machine."""


class CompositeOperatorError(UdfError):
    """torch computes an operator and its gradient through other operators."""


class OperatorRecursionError(UdfError):
    """A UDF at operator level calls the operator that it replaces."""


class OperatorResultError(UdfError):
    """A UDF at operator level fails, or its result is unlike the stock kernel's."""


class OperatorStateError(UdfError):
    """The stock kernel was requested outside a UDF at operator level."""


class PatchFolderError(UdfError):
    """A folder cannot take a patched libtorch, or does not hold one."""


class PatchLibraryError(UdfError):
    """A UDF library has nothing that a patched libtorch can hold."""


class PatchCheckError(UdfError):
    """A fresh process on a patched libtorch does not compute the library's bits."""


class ProfileDepthError(UdfError):
    """The requested depth or stride of a profile does not exist."""


class ProfileBusyError(UdfError):
    """A second profiled session was opened while one is open in this process."""


class ObserverBuildError(UdfError):
    """A library that profiled sessions need does not compile against this torch."""


class CpuLaunchBuildError(UdfError):
    """What runs CPU operators without Python does not compile against this torch."""


class CpuLaunchError(UdfError):
    """torch rejects a kernel for the CPU that is run without Python."""


class CudaLaunchBuildError(UdfError):
    """What launches CUDA kernels without Python does not compile against this torch."""


class CudaLaunchError(UdfError):
    """torch rejects a kernel for CUDA that is launched without Python."""


class ProfileFileError(UdfError):
    """A profile cannot be created or read: check the folder, the permissions and the disk."""


class ProfileFileBusyError(UdfError):
    """Another session is writing to the file named for a profile."""


class ProfileFileExistsError(UdfError):
    """The file named for a new profile holds an earlier one."""


class ProfileFormatError(UdfError):
    """A file is not a profile, or its header is incomplete."""


class ProfileVersionError(UdfError):
    """A profile was written by a newer version of this package."""


class ProfileDamagedError(UdfError):
    """The header or a record of a profile does not have the checksum that it states."""


class ProfileMismatchError(UdfError):
    """Profiles that do not belong together cannot be merged."""


class RunsDifferError(UdfError):
    """Profiles of several runs were to be added up, which nobody asked for."""


class BaselineError(UdfError):
    """A baseline cannot be read or written, or a file is none."""


class GoldenError(UdfError):
    """Golden values cannot be stored or read, or do not belong to what is checked."""


class GoldenMismatchError(UdfError, AssertionError):
    """A result is not within what golden values allow."""


class CompareError(UdfError):
    """Files cannot be compared with each other."""


class CompareLimitError(UdfError):
    """A limit on changes is not one, or nothing is there that it could bound."""


class NoProfileError(UdfError):
    """There is no profile to read: none was written, or profiling is off."""


class PackageMissingError(UdfError):
    """An optional package is needed for what was asked."""


class CoverageError(UdfError):
    """There is no run whose coverage could be counted, or it cannot be stored."""


class DiffSideError(UdfError):
    """The text of a side of a comparison means nothing, or two sides cannot be compared."""


class DiffRunError(UdfError):
    """A run that is to be compared fails, cannot be repeated, or calls no operator.

    Attributes:
        recording: of a run that failed, the part that was recorded; else None.
    """

    recording: Any = None


class DiffRecordError(UdfError):
    """A recorded run cannot be written or read, or does not belong to what it is compared with."""


class DiffReproducerError(UdfError):
    """A difference cannot be written as a script, or the script cannot be stored."""


class BlameError(UdfError):
    """Two libraries cannot be compared by a test or metric: it fails, varies, or is the same."""


class SensitivityError(UdfError):
    """Perturbed runs cannot be done or watched as asked for, or what they show cannot be stored."""


class ToleranceError(UdfError):
    """A search for cheaper functions cannot be done as asked for, or its metric is of no use."""


class JournalError(UdfError):
    """A journal cannot be read or written, is damaged, or belongs to something else."""


class SummationError(UdfError):
    """The order of an operator's additions cannot be read as it was asked for."""


class ReplicaError(UdfError):
    """Gradients of the parts of a batch cannot be added in the order of the contract."""


class OutsideContractError(UdfError):
    """A run called an operator that is outside of the contract, under ``strict``."""


class EquivalenceError(UdfError):
    """Two programs cannot be compared by the box test: it decides multi-linear ones alone."""


class RewriteError(UdfError):
    """A graph cannot be rewritten as it was asked for; or, with ``strict``, in a part."""


class RuleError(UdfError):
    """A rule of rewriting is not one, or is unsound; the message names it."""


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
