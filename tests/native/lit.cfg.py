# SPDX-License-Identifier: Apache-2.0
# The .ll tests' runner. conftest.py names the tools and the plugin in the environment.
import os

import lit.formats

config.name = "udf passes"  # noqa: F821
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".ll"]  # noqa: F821
config.test_source_root = os.path.dirname(__file__)  # noqa: F821
config.test_exec_root = os.environ["UDFTORCH_LIT_SCRATCH"]  # noqa: F821
# opt fails if a pass changes a function and keeps analyses of it.
options = " -load-pass-plugin=%plugin -verify-analysis-invalidation"
config.substitutions += [  # noqa: F821
    ("%opt", os.environ["UDFTORCH_LIT_OPT"] + options),
    ("%plugin", os.environ["UDFTORCH_LIT_PLUGIN"]),
    ("%FileCheck", os.environ["UDFTORCH_LIT_FILECHECK"]),
    ("%split", os.environ["UDFTORCH_LIT_SPLIT"]),
]
config.recursiveExpansionLimit = 4  # noqa: F821
