#include "canary.h"

#include "acosh/acoshf.c"

UDF_CANARY(acoshf)
