#include "canary.h"

#include "asin/asinf.c"

UDF_CANARY(asinf)
