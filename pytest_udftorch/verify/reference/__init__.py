# SPDX-License-Identifier: Apache-2.0
"""References that share no code with a UDF, and the checker that compares with them.

Their C sources lie in this folder and are compiled on demand into the build cache: the
checker with GNU MPFR, and thin array wrappers around LLVM-libc's correctly rounded
functions, which Debian ships as an archive that overrides the C library and therefore has
to be closed up in a shared library of its own.
"""
