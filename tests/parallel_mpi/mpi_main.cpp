// main() of test programs whose ranks are processes. MPI is initialized only to run tests, not to list them. A failure
// on one rank ends all of them, which would otherwise wait forever. Only rank 0 reports success.
#define CATCH_CONFIG_RUNNER
#ifdef GPT_SANITIZED
#define CATCH_CONFIG_NO_POSIX_SIGNALS  // the sanitizer reports them, with a stack
#endif
#include "tests/parallel_mpi/mpi_main.h"

#include <iostream>

#include "tests/support/test.h"

namespace {
gt::MpiFactory* factory = nullptr;

struct AbortOnFailure : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  bool assertionEnded(const Catch::AssertionStats& s) override {
    const auto& r = s.assertionResult;
    if (!r.isOk()) {
      std::cerr << "rank " << (factory ? factory->world_rank() : 0) << ": " << r.getSourceInfo().file << ":"
                << r.getSourceInfo().line << ": FAILED " << r.getExpressionInMacro() << "\n  "
                << r.getExpandedExpression() << "\n  " << r.getMessage() << std::endl;
    }
    return false;
  }
  void testCaseEnded(const Catch::TestCaseStats& s) override {
    if (s.totals.assertions.failed > 0 && factory != nullptr) factory->abort(1);
  }
};
CATCH_REGISTER_LISTENER(AbortOnFailure)
}  // namespace

gt::MpiFactory& gt::mpi_factory() {
  GT_CHECK(factory != nullptr, "start this program with mpirun");
  return *factory;
}

int main(int argc, char** argv) {
  Catch::Session session;
  if (const int rc = session.applyCommandLine(argc, argv)) return rc;
  const auto& c = session.configData();
  if (c.listTests || c.listTags || c.listTestNamesOnly || c.listReporters || c.showHelp) return session.run();
  gt::MpiFactory ranks(std::chrono::seconds(60));
  factory = &ranks;
  if (ranks.world_rank() != 0) session.configData().outputFilename = "/dev/null";
  const int failed = session.run();
  factory = nullptr;
  return failed ? 1 : 0;
}
