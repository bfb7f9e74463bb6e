// SPDX-License-Identifier: Apache-2.0
#include "format.h"

#include "expm1/expm1f.c"

UDF_FORMAT(expm1f)
