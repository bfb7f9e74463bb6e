#include "canary.h"

#include "exp/expf.c"

UDF_CANARY(expf)
