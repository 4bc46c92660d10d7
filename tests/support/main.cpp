#define CATCH_CONFIG_MAIN
#ifdef GPT_SANITIZED
#define CATCH_CONFIG_NO_POSIX_SIGNALS  // the sanitizer reports them, with a stack
#endif
#include "tests/support/test.h"
