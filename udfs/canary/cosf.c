#include "canary.h"

#include "cos/cosf.c"

UDF_CANARY(cosf)
