# SPDX-License-Identifier: Apache-2.0
"""Which compiler, which flags, which CPU level, which cache?"""
