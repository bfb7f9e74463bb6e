# SPDX-License-Identifier: Apache-2.0
"""In which order does an operator add, and does the order depend on the batch?"""
