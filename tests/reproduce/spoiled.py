# SPDX-License-Identifier: Apache-2.0
"""The negative control of the contract: its sums in another order, built once for all tests."""

#: Chunks of another length, and units that are one too large: for ``contract(defines=...)``.
SPOILED = ("-DCHUNK=4", "-DEXACT_OFF=1")
