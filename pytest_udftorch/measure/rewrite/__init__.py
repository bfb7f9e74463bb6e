# SPDX-License-Identifier: Apache-2.0
"""Which graph computes the same faster? Do two programs compute the same?"""
