// `test_kernels [.bench]`: times the large case of each op on every available backend, as a table. Asserts nothing
// about time.
#include <cstdio>
#include <string>

#include "kernels/backend.h"
#include "tests/kernels/cases/op_cases.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

void print_table(const Backend& backend, const std::string& title, int threads) {
  const Stream stream = backend.device->open_stream(0, threads);
  std::printf("\n%s\n%-20s %-58s %11s %9s %9s\n", title.c_str(), "op", "case", "us", "GB/s", "GFLOP/s");
  for (const auto& c : op_cases()) {
    if (!c->big) continue;
    c->prepare(1);
    const double seconds = c->time(backend, stream, 7);
    CHECK(seconds > 0);
    std::printf("%-20s %-58s %11.1f %9.2f %9.2f\n", c->op.c_str(), c->name.c_str(), seconds * 1e6,
                c->bytes() / seconds * 1e-9, c->flops / seconds * 1e-9);
    std::fflush(stdout);
  }
  backend.device->close_stream(stream);
}

}  // namespace

TEST_CASE("bench: time per call, bandwidth and rate of every op's large case", "[.bench]") {
  std::string why;
  for (const int threads : {1, 2}) print_table(cpu_backend(), cat("cpu ", cpu_isa(), ", threads ", threads), threads);
  const Backend* cuda = cuda_backend(&why);
  if (cuda) print_table(*cuda, "cuda, " + cuda->device->describe(0), 1);
  if (!cuda) WARN("not timed on a GPU: " << why);
}

}  // namespace gt::test
