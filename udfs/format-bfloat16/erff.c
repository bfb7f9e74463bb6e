// SPDX-License-Identifier: Apache-2.0
#include "format.h"

#include "erf/erff.c"

UDF_FORMAT(erff)
