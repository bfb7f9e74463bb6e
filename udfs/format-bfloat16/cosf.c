// SPDX-License-Identifier: Apache-2.0
#include "format.h"

#include "cos/cosf.c"

UDF_FORMAT(cosf)
