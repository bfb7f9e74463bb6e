# SPDX-License-Identifier: Apache-2.0
"""The public names for runs that give the same bits on every machine."""

from pytest_udftorch.contract.outside import Outside, within_contract
from pytest_udftorch.errors import OutsideContractError

__all__ = ["Outside", "OutsideContractError", "within_contract"]
