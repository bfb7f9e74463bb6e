# SPDX-License-Identifier: Apache-2.0
"""Which operators does a run call, in which layer, with which tensors?"""
