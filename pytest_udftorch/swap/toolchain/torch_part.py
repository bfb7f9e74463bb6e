# SPDX-License-Identifier: Apache-2.0
"""Parts of this package that are compiled against the headers of a torch.

They use classes of libtorch, so a build serves one minor version of torch. Builds for the supported
ones are shipped; for another torch the part is compiled on first use.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import CompilerNotFoundError
from pytest_udftorch.swap.native.runtime import native_file
from pytest_udftorch.swap.toolchain.agenda import Candidate
from pytest_udftorch.swap.toolchain.compiler import Compiler, find_compiler, torch_flags
from pytest_udftorch.swap.toolchain.job import Job, Step, available, obtain

#: Classes of torch have other members without ``NDEBUG``, with which its wheels are built.
_FLAGS: Final = (
    "--driver-mode=g++", "-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-shared",
    "-fvisibility=hidden",
)  # fmt: skip


@dataclass(frozen=True)
class TorchPart:
    """A shared object of one C++ file.

    Attributes:
        source: the file, of the package's native ones.
        headers: native files that it includes.
        what: what it is, for messages and lines about progress: ``the observer``.
        failed: makes the error of a build that failed from the version of torch and what the
            compiler wrote.
        lost: what does not work without it, for the error of a machine without a compiler.
        texts: takes the folder of torch that has the headers; returns file name -> text of a
            header that it includes and that a build writes.
        libraries: of torch that it calls, besides those of C++ (``torch_python``).
    """

    source: str
    headers: tuple[str, ...]
    what: str
    failed: Callable[[str, str], Exception]
    lost: str
    texts: Callable[[Path], Mapping[str, str]] = lambda _: {}
    libraries: tuple[str, ...] = ()

    def job(self, package: Path, version: str, local: Any, compiler: Compiler) -> Job:
        """Return the job that compiles the part.

        Args:
            package: folder of torch, or of as much of it as its headers.
            version: of torch.
            local: what else tells this torch and Python from others of the same versions.
            compiler: clang.
        """
        source = native_file(self.source)
        name = source.stem
        flags, libraries = torch_flags(package)
        texts = self.texts(package)
        written = ("-I.",) if texts else ()
        arguments = (
            *_FLAGS, f"-ffile-prefix-map={package}=torch",
            f"-ffile-prefix-map={source.parent}=native", *written, *flags, str(source), "-o",
            f"{name}.so", "-Wl,--no-as-needed", *libraries, *(f"-l{n}" for n in self.libraries),
        )  # fmt: skip

        def failed(step: Step, message: str) -> Exception:
            return self.failed(version, message[-4000:])

        return Job(
            kind=f"{name}-",
            compiler=compiler,
            stages=((Step(compiler.path, arguments, source),),),
            output=f"{name}.so",
            failed=failed,
            texts=texts,
            # The flags name the headers of Python, also for a source that does not include them.
            homes={str(package): "TORCH", sysconfig.get_path("include"): None},
            installed=installed_list(package),
            inputs=(source, *map(native_file, self.headers)),
            covers=version.split(".")[:2],
            local=local,
            facts={"torch": version, "compiler": compiler.version},
            what=self._for(version),
        )

    def _for(self, version: str) -> str:
        return f"{self.what} for torch {version}"

    def candidate(self) -> Candidate:
        """Return the part for the installed torch as one of what is going to be needed."""
        version, _ = self._installed()
        kind = f"{Path(self.source).stem}-"
        return Candidate(self._for(version), kind, self.available, self.obtain)

    def _installed(self) -> tuple[str, Callable[[Compiler], Job]]:
        """Return the version of the installed torch, and what makes the job for it."""
        import torch

        version = str(torch.__version__)
        facts = [version, torch.version.git_version, sys.version]
        return version, functools.partial(
            self.job, headers_of(Path(torch.__file__).parent), version, facts
        )

    def available(self) -> str:
        """Return where the part for the installed torch would come from; see ``job.available``.

        Raises:
            CompilerNotFoundError: there is none, and no usable clang.
        """
        return available(self._installed()[1], find_compiler)

    def obtain(self) -> Path:
        """Return the part for the installed torch, compiled if none was shipped or cached.

        Raises:
            UdfError: that of ``failed``: it does not compile.
            CompilerNotFoundError: there is no usable clang.
            CacheError: the cache folder cannot be written.
        """
        version, make = self._installed()
        try:
            return obtain(make, find_compiler).path
        except CompilerNotFoundError as error:
            raise CompilerNotFoundError(
                f"{self.lost}: no shipped build of {self.what} fits torch {version}, and it cannot "
                f"be compiled. {error}"
            ) from error


def installed_list(package: Path) -> dict[str, Path]:
    """Return the folder of torch with pip's list of its files, if pip installed it from a wheel."""
    lists = list(package.parent.glob("torch-*.dist-info/RECORD"))
    return {str(package): lists[0]} if len(lists) == 1 else {}


def headers_of(package: Path) -> Path:
    """Return the torch whose headers a torch has: ``udftorch patch`` links those of the original.

    Builds for the original then serve the patched one.
    """
    original = (package / "include").resolve().parent
    return original if (original / "lib" / "libtorch_cpu.so").exists() else package


#: What a C++ file that includes torch's headers and Python's needs, for errors.
HEADERS_NEEDED: Final = (
    "It needs the headers of the C++ standard library (on Debian: libstdc++-13-dev or another "
    "version), those of Python (python3-dev), and those that torch's wheels bring."
)
