# SPDX-License-Identifier: Apache-2.0
"""``python -m pytest_udftorch.reach``."""

import sys

from pytest_udftorch.reach.table import main

sys.exit(main())
