# SPDX-License-Identifier: Apache-2.0
"""What should a computation give, and how far may rounding lead from it?"""
