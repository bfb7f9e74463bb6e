# SPDX-License-Identifier: Apache-2.0
"""Pages and tables of profiles.

See docs/profile.md.
"""

from __future__ import annotations

from pytest_udftorch.profile.report import heading, html, page, sections, terminal
from pytest_udftorch.profile.tables import Cell, table, text_cell

__all__ = ["Cell", "heading", "html", "page", "sections", "table", "terminal", "text_cell"]
