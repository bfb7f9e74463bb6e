# SPDX-License-Identifier: Apache-2.0
"""``python -m pytest_udftorch.cli`` is the command ``udftorch``."""

import sys

from pytest_udftorch.cli.command import main

sys.exit(main())
