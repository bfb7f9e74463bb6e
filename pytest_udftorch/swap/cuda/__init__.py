# SPDX-License-Identifier: Apache-2.0
"""Which kernel replaces an eager CUDA operator, and which functions does it hold?"""
