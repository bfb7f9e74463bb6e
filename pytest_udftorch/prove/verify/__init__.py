# SPDX-License-Identifier: Apache-2.0
"""Is a function right on all inputs?"""
