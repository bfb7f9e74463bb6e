# SPDX-License-Identifier: Apache-2.0
"""How is what was counted added up, exported and drawn?"""
