// Backends as a whole: complete tables, memory, streams, instruction set selection, and error reasons.
#include "kernels/backend.h"

#include <cstdlib>
#include <cstring>
#include <set>

#include "kernels/core/memory.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/simd/isa.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("the CPU and null backends are complete") {
  for (const Backend* b : {&cpu_backend(), &null_backend()}) {
    CHECK(first_missing(*b->ops) == nullptr);
    CHECK(complete(*b->device));
    CHECK(std::string(b->ops->name) == b->device->name);
    CHECK(b->device->count() == 1);
    CHECK(b->device->describe(0).size() > 5);
  }
  CHECK(cpu_backend().kind == DeviceKind::kCpu);
  CHECK(null_backend().kind == DeviceKind::kNull);
}

TEST_CASE("CPU memory is aligned, writable, copied and zeroed") {
  const DeviceApi& api = *cpu_backend().device;
  const Stream stream = api.open_stream(0, 3);
  for (int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{5} << 20}) {
    auto* a = static_cast<unsigned char*>(api.alloc(0, bytes));
    auto* b = static_cast<unsigned char*>(api.alloc_host(bytes));
    CHECK(reinterpret_cast<uintptr_t>(a) % 256 == 0);
    std::memset(a, 7, static_cast<size_t>(bytes));
    api.copy(b, a, bytes, stream);
    CHECK(std::memcmp(a, b, static_cast<size_t>(bytes)) == 0);
    api.zero(a, bytes, stream);
    api.synchronize(stream);
    CHECK(std::count(a, a + bytes, 0) == bytes);
    api.free(0, a, bytes);
    api.free_host(b, bytes);
  }
  api.close_stream(stream);
  int64_t free_bytes = 0, total = 0;
  api.memory(0, &free_bytes, &total);
  CHECK(free_bytes > 0);
  CHECK(free_bytes <= total);
}

TEST_CASE("a CPU stream has the requested threads, zero means all cores") {
  const DeviceApi& api = *cpu_backend().device;
  for (int threads : {0, 1, 4}) {
    const Stream stream = api.open_stream(0, threads);
    CHECK(cpu::cpu_context(stream).pool.threads() == (threads ? threads : cpu::usable_cores()));
    api.close_stream(stream);
  }
  CHECK_THROWS_WITH(api.open_stream(1, 1), Catch::Contains("one CPU device"));
}

TEST_CASE("a CPU allocation above the available memory is refused with the sizes") {
  try {
    cpu_backend().device->alloc(0, int64_t{1} << 58);
    FAIL("allocated 256 PiB");
  } catch (const Error& e) {
    CHECK(e.code() == Exit::kUsage);
    CHECK_THAT(e.what(), Catch::Contains(std::to_string(int64_t{1} << 58)) && Catch::Contains("available"));
  }
}

TEST_CASE("null memory has distinct addresses without storage, and null ops read nothing") {
  const DeviceApi& api = *null_backend().device;
  const Stream stream = api.open_stream(0, 8);
  constexpr int64_t kTebi = int64_t{1} << 40;
  std::set<void*> earlier;
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(api.alloc(0, kTebi));
  for (void* p : blocks) {
    for (void* q : earlier) CHECK(std::abs(static_cast<char*>(p) - static_cast<char*>(q)) >= kTebi);
    earlier.insert(p);
  }
  CHECK(earlier.size() == blocks.size());
  auto* p = static_cast<std::byte*>(blocks[0]);
  const Tensor t{p, {1 << 19, 1 << 19}, DType::kF32, stream.device};
  null_backend().ops->gemm({.a = t, .b = t, .out = t}, stream);
  null_backend().ops->add({.a = t, .b = t, .out = t}, stream);
  api.copy(blocks[0], blocks[1], kTebi, stream);
  api.zero(blocks[0], kTebi, stream);
  for (void* b : blocks) api.free(0, b, kTebi);
  Buffer buffer(kTebi, stream.device, api);
  CHECK(buffer.tensor({int64_t{1} << 38}, DType::kF32).bytes() == kTebi);
  api.close_stream(stream);
}

TEST_CASE("any instruction set of the processor can be forced, and no other") {
  const CpuIsa before = cpu::current_isa();
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    const std::string name = name_of(isa);
    if (isa <= cpu::best_isa()) {
      set_cpu_isa(isa);
      CHECK(cpu_isa() == name);
      CHECK(cpu::current_isa() == isa);
    } else {
      CHECK_THROWS_WITH(set_cpu_isa(isa), Catch::Contains(name) && Catch::Contains("it has: auto, scalar"));
    }
  }
  set_cpu_isa(CpuIsa::kAuto);
  CHECK(cpu::current_isa() == cpu::best_isa());
  CHECK_THAT(cpu_backend().device->describe(0), Catch::Contains(cpu_isa()));
  set_cpu_isa(before);
}

TEST_CASE("queues of the CUDA driver: the maximum, or the user's number") {
  const char* name = "CUDA_DEVICE_MAX_CONNECTIONS";
  const std::string expected = std::getenv(name) != nullptr ? std::getenv(name) : "32";
  // Otherwise the driver may have been queried already.
  if (cuda_backend(nullptr) != nullptr) CHECK(std::getenv(name) == expected);
}

TEST_CASE("the CUDA backend is complete, or reports why it is missing") {
  std::string why;
  const Backend* cuda = cuda_backend(&why);
  if (cuda != nullptr) {
    CHECK(why.empty());
    CHECK(cuda->kind == DeviceKind::kCuda);
    CHECK(cuda->device->count() > 0);
  } else {
    CHECK(why.size() > 20);
    CHECK_THAT(why, Catch::Contains("CUDA"));
    std::string again;
    CHECK(cuda_backend(&again) == nullptr);
    CHECK(again == why);
    CHECK(cuda_backend(nullptr) == nullptr);
  }
}
