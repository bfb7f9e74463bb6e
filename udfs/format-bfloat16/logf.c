// SPDX-License-Identifier: Apache-2.0
#include "format.h"

#include "log/logf.c"

UDF_FORMAT(logf)
