#define CATCH_CONFIG_MAIN
#include "tests/support/test.h"
