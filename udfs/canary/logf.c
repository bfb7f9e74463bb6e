#include "canary.h"

#include "log/logf.c"

UDF_CANARY(logf)
