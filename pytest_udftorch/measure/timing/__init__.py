# SPDX-License-Identifier: Apache-2.0
"""How long does a call, or a layer, take, and how sure is that?"""
