# SPDX-License-Identifier: Apache-2.0
"""A libtorch on disk with a UDF library bound, for programs that never load this package."""
