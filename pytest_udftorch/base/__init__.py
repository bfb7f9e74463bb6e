# SPDX-License-Identifier: Apache-2.0
"""What knows nothing of the subject."""
