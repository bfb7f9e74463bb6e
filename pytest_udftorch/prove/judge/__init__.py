# SPDX-License-Identifier: Apache-2.0
"""How far may rounding lead, and which of two results is nearer to the truth?"""
