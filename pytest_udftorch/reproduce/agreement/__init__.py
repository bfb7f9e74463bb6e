# SPDX-License-Identifier: Apache-2.0
"""Do the ways in which a model is run give the same bits?"""
