# SPDX-License-Identifier: Apache-2.0
"""What did the functions do?"""

from typing import TYPE_CHECKING

from pytest_udftorch.base.package import names_from

if TYPE_CHECKING:
    from pytest_udftorch.swap.records.profile import Profile as Profile
    from pytest_udftorch.swap.records.profile import load_profiles as load_profiles
    from pytest_udftorch.swap.records.profile import merge_profiles as merge_profiles
    from pytest_udftorch.watch.profile.report import profiles_html as profiles_html
else:
    __all__, __getattr__, __dir__ = names_from(
        __name__,
        {
            "swap.records.profile": ["Profile", "load_profiles", "merge_profiles"],
            "watch.profile.report": ["profiles_html"],
        },
    )
