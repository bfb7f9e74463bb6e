# SPDX-License-Identifier: Apache-2.0
"""References that share no code with a UDF, and the checker that compares with them.

Their C sources lie in this folder and are compiled on demand into the build cache: the
checker with GNU MPFR, and thin array wrappers around LLVM-libc's correctly rounded
functions. Debian ships those as an archive that overrides the C library, so the wrappers
enclose it in a shared library of its own.
"""
