# SPDX-License-Identifier: Apache-2.0
"""One class per mistake a user can make.

Every message says what went wrong, why, and what to do about it. All of them derive
from :class:`UdfError`, so that ``except pytest_udftorch.UdfError`` catches whatever this
package raises on purpose and nothing else.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CacheError",
    "CompileRunningError",
    "CompiledElsewhereError",
    "CompilerNotFoundError",
    "CompilerTooOldError",
    "CompositeOperatorError",
    "CpuLevelError",
    "CudaFormError",
    "CudaGraphCaptureError",
    "DispatchKeyError",
    "LibdeviceError",
    "LibraryFormatError",
    "NativeLibraryError",
    "NoProfileError",
    "ObserverBuildError",
    "OperatorRecursionError",
    "OperatorResultError",
    "OperatorStateError",
    "PackageMissingError",
    "PrivateNameError",
    "ProfileBusyError",
    "ProfileDamagedError",
    "ProfileDepthError",
    "ProfileFileBusyError",
    "ProfileFileError",
    "ProfileFileExistsError",
    "ProfileFormatError",
    "ProfileLossWarning",
    "ProfileMismatchError",
    "ProfileVersionError",
    "PythonUdfError",
    "RestoreError",
    "SessionStateError",
    "SignatureError",
    "SourceCompileError",
    "SwapMismatchError",
    "SwapReachedNothingError",
    "SymbolsMissingError",
    "TorchNotFoundError",
    "UdfError",
    "UnknownFunctionError",
    "UnknownLibraryError",
    "UnknownOperatorError",
]


class UdfError(Exception):
    """Base class of every error this package raises on purpose."""


class UnknownLibraryError(UdfError):
    """No UDF library has the given name, and no folder lies at the given path."""


class LibraryFormatError(UdfError):
    """A folder is no valid UDF library: no ``udf.toml``, or something wrong in it."""


class UnknownFunctionError(UdfError):
    """A function was asked for that the library, or PyTorch, does not have."""


class CompilerNotFoundError(UdfError):
    """No clang of the pass plugin's LLVM version was found."""


class CompilerTooOldError(UdfError):
    """The clang named by the user is older than the pass plugin can be loaded into."""


class SourceCompileError(UdfError):
    """A UDF source does not compile; carries the compiler's own message."""


class SignatureError(UdfError):
    """A UDF is missing from its source or has another C type than its ABI asks for."""


class CacheError(UdfError):
    """The build cache cannot be written or read."""


class CpuLevelError(UdfError):
    """A CPU level was asked for that does not exist or that this CPU does not have."""


class CudaFormError(UdfError):
    """No such form of functions on a GPU, or the library does not have it."""


class NativeLibraryError(UdfError):
    """The package's own native files are missing or belong to another version."""


class TorchNotFoundError(UdfError):
    """torch is not installed, or is not a build whose libtorch_cpu.so can be rebound."""


class PrivateNameError(UdfError):
    """The installed torch or Triton lacks a private name that this package needs."""


class SymbolsMissingError(UdfError):
    """This libtorch does not call a function by any symbol that could be rebound."""


class SwapReachedNothingError(UdfError):
    """The slots were rebound, but a real torch operator did not go through them."""


class SwapMismatchError(UdfError):
    """An operator went through a rebound slot, but its result is not the UDF's."""


class RestoreError(UdfError):
    """On exit a slot held neither our function nor the one found on entry."""


class SessionStateError(UdfError):
    """A session was entered twice, or used while it is not open."""


class CompiledElsewhereError(UdfError):
    """A compiled model is called under other functions than it was compiled with."""


class CompileRunningError(UdfError):
    """Another thread is in the middle of torch.compile while the functions shall change."""


class CudaGraphCaptureError(UdfError):
    """A session was opened while a CUDA graph is being captured."""


class LibdeviceError(UdfError):
    """Functions cannot be put into the libdevice of the installed triton."""


class PythonUdfError(UdfError):
    """A UDF written in Python cannot be compiled, or its file not be imported."""


class UnknownOperatorError(UdfError):
    """torch's dispatcher has no operator or overload of the name of a UDF."""


class DispatchKeyError(UdfError):
    """A dispatch key does not exist, is no backend, or this machine has no device of it."""


class CompositeOperatorError(UdfError):
    """torch computes an operator, and its gradient, by other operators."""


class OperatorRecursionError(UdfError):
    """A UDF at operator level calls the operator that it stands in for."""


class OperatorResultError(UdfError):
    """A UDF at operator level fails or gives another kind of result than the stock kernel."""


class OperatorStateError(UdfError):
    """The stock kernel was asked for where no UDF at operator level runs."""


class ProfileDepthError(UdfError):
    """A profile was asked for at a depth or with a stride that does not exist."""


class ProfileBusyError(UdfError):
    """A second profiled session was opened while one is open in this process."""


class ObserverBuildError(UdfError):
    """A library that profiled sessions need does not compile against this torch."""


class ProfileFileError(UdfError):
    """A profile cannot be created or read: the folder, the rights or the disk are wrong."""


class ProfileFileBusyError(UdfError):
    """Another session is writing the file that was named for a profile."""


class ProfileFileExistsError(UdfError):
    """The file that was named for a new profile holds an earlier one."""


class ProfileFormatError(UdfError):
    """A file is no profile, or its header is not whole."""


class ProfileVersionError(UdfError):
    """A profile was written by a newer version of this package."""


class ProfileDamagedError(UdfError):
    """The header or a record of a profile does not have the checksum that it states."""


class ProfileMismatchError(UdfError):
    """Profiles that do not belong together were to be put together."""


class NoProfileError(UdfError):
    """There is no profile where one was asked for: none was written, or profiling is off."""


class PackageMissingError(UdfError):
    """An optional package is needed for what was asked."""


class ProfileLossWarning(UserWarning):
    """Records of a profile could not be written; the run went on without them."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that offers the names nearest to ``name``, or lists all of them."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(repr(c) for c in close)}?"
    if choices:
        return f"Known: {', '.join(choices)}."
    return "There are none."
