# SPDX-License-Identifier: Apache-2.0
"""How do TorchInductor and Triton get the functions of a session?"""
