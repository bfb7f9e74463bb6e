# SPDX-License-Identifier: Apache-2.0
"""``python -m pytest_udftorch`` is the command ``udftorch``."""

import sys

from pytest_udftorch.cli import main

sys.exit(main())
