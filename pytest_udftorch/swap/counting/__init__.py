# SPDX-License-Identifier: Apache-2.0
"""How are calls of functions counted?"""
