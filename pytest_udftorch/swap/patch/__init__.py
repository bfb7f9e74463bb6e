# SPDX-License-Identifier: Apache-2.0
"""How does a process that never loads this package get the functions?"""
