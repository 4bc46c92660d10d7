// The main program of every test: Catch2's, plus an exit code of its own when every case was skipped.
#define CATCH_CONFIG_RUNNER
#ifdef GPT_SANITIZED
#define CATCH_CONFIG_NO_POSIX_SIGNALS  // the sanitizer reports signals, with a stack
#endif
#include <csignal>
#include <cstdio>

#include "tests/support/skip.h"
#include "tests/support/test.h"

namespace {

int cases = 0, skipped = 0;
bool skips = false;  // the running case

struct CaseCounter : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo&) override { skips = false; }
  void testCaseEnded(const Catch::TestCaseStats&) override { ++cases, skipped += skips; }
};
CATCH_REGISTER_LISTENER(CaseCounter)

void print(const char* what, const std::string& why) {
  std::printf("%s: %s\n", what, why.c_str());
  std::fflush(stdout);
}

}  // namespace

namespace gt {

void report_skipped(const std::string& why) {
  skips = true;
  print("SKIPPED", why);
}

void report_partly_skipped(const std::string& why) { print("SKIPPED IN PART", why); }

}  // namespace gt

int main(int argc, char** argv) {
  for (const int n : {SIGINT, SIGQUIT, SIGHUP})
    std::signal(n, SIG_DFL);  // a suite in a shell's background ignores them
  const int failed = Catch::Session().run(argc, argv);
  return failed == 0 && cases > 0 && skipped == cases ? gt::kSkipped : failed;
}
