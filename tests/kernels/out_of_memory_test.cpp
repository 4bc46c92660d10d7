// The text of a failed allocation.
#include "kernels/core/out_of_memory.h"

#include <string>
#include <thread>

#include "tests/support/test.h"

using namespace gt;

TEST_CASE("a failed allocation is described by its size and the thread's purpose") {
  const auto text = [](size_t bytes) { return std::string(OutOfMemory(bytes).what()); };
  CHECK(text(5) == "out of memory: 5 bytes for the program");
  {
    const MemoryPurpose training("training");
    CHECK(text(1) == "out of memory: 1 bytes for training");
    {
      const MemoryPurpose save("the checkpoint");
      CHECK(text(2) == "out of memory: 2 bytes for the checkpoint");
    }
    std::thread([&] { CHECK(text(3) == "out of memory: 3 bytes for the program"); }).join();
    CHECK(text(4) == "out of memory: 4 bytes for training");
  }
  CHECK(text(6) == "out of memory: 6 bytes for the program");
  const OutOfMemory error(7);
  CHECK(dynamic_cast<const std::bad_alloc*>(&error) != nullptr);
}
