# SPDX-License-Identifier: Apache-2.0
"""How does an operator reach a kernel of ours, and is it reached?"""
