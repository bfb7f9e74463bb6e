# SPDX-License-Identifier: Apache-2.0
"""The swap itself: the slots of the process, and sessions over them."""
