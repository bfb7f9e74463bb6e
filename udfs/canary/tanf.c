#include "canary.h"

#include "tan/tanf.c"

UDF_CANARY(tanf)
