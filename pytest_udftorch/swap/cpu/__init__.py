# SPDX-License-Identifier: Apache-2.0
"""Which kernel replaces an eager CPU operator that no symbol leads into?"""
