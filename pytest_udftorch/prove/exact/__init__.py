# SPDX-License-Identifier: Apache-2.0
"""Number formats, correct rounding, the assertions, and the inputs of tests."""
