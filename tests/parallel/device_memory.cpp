#include "tests/parallel/device_memory.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace gt {
namespace {

std::atomic<int64_t> made{0}, held{0};

Tensor on_device(Tensor t) {
  t.device.kind = DeviceKind::kCuda;
  return t;
}

class Marked final : public ProcessGroup {
 public:
  explicit Marked(std::unique_ptr<ProcessGroup> g) : ProcessGroup(g->rank(), g->size()), g_(std::move(g)) {}
  std::string_view backend() const override { return g_->backend(); }
  const CommCounters& counters() const override { return g_->counters(); }
  const std::string& label() const override { return g_->label(); }
  void set_label(std::string label) override { g_->set_label(std::move(label)); }
  Work all_reduce(Tensor t, ReduceOp op, Stream s) override { return g_->all_reduce(on_device(t), op, s); }
  Work all_gather(Tensor a, Tensor b, Stream s) override { return g_->all_gather(on_device(a), on_device(b), s); }
  Work reduce_scatter(Tensor a, Tensor b, Stream s) override {
    return g_->reduce_scatter(on_device(a), on_device(b), s);
  }
  Work broadcast(Tensor t, int root, Stream s) override { return g_->broadcast(on_device(t), root, s); }
  Work all_to_all(Tensor a, Tensor b, const PeerCounts& counts, Stream s) override {
    return g_->all_to_all(on_device(a), on_device(b), counts, s);
  }
  Work send(Tensor t, int to, int tag, Stream s) override { return g_->send(on_device(t), to, tag, s); }
  Work recv(Tensor t, int from, int tag, Stream s) override { return g_->recv(on_device(t), from, tag, s); }
  void barrier() override { g_->barrier(); }
  void poll() override { g_->poll(); }
  void abandon(const std::string& why, Exit code) override { g_->abandon(why, code); }

 protected:
  void wait(uint64_t, Stream) override {}

 private:
  std::unique_ptr<ProcessGroup> g_;
};

std::vector<std::string>* log_of = nullptr;
std::vector<Event> named;

void note(const char* what, Event e, Stream s) {
  if (log_of->empty()) named.clear();
  auto it = std::find(named.begin(), named.end(), e);
  if (it == named.end()) it = named.insert(named.end(), e);
  log_of->push_back(cat(what, " ", static_cast<char>('a' + (it - named.begin())), " on ",
                        *static_cast<const int*>(s.native) == 1 ? "own" : "compute"));
}

}  // namespace

int64_t host_blocks_made() { return made; }
int64_t host_blocks_held() { return held; }

const DeviceApi& plain_device() {
  static int own = 1;
  static const DeviceApi api = [] {
    DeviceApi a;
    a.alloc = [](int, int64_t n) -> void* { return std::malloc(static_cast<size_t>(n)); };
    a.free = [](int, void* p, int64_t) { std::free(p); };
    a.alloc_host = [](int64_t n) -> void* { return ++made, ++held, std::malloc(static_cast<size_t>(n)); };
    a.free_host = [](void* p, int64_t) { --held, std::free(p); };
    a.copy = [](void* to, const void* from, int64_t n, Stream) { std::memmove(to, from, static_cast<size_t>(n)); };
    a.open_stream = [](int index, int) -> Stream { return {{DeviceKind::kCuda, static_cast<int8_t>(index)}, &own}; };
    a.close_stream = [](Stream) {};
    a.synchronize = [](Stream) {};
    a.create_event = [](int) -> Event { return new int{0}; };
    a.destroy_event = [](Event e) { delete static_cast<int*>(e); };
    a.record = [](Event, Stream) {};
    a.wait = [](Event, Stream) {};
    a.done = [](Event) { return true; };
    return a;
  }();
  return api;
}

DeviceApi logging_device(std::vector<std::string>& log) {
  log_of = &log;
  DeviceApi a = plain_device();
  a.record = [](Event e, Stream s) { note("record", e, s); };
  a.wait = [](Event e, Stream s) { note("wait", e, s); };
  return a;
}

std::unique_ptr<ProcessGroup> MarkedFactory::make(std::span<const int> ranks) {
  return std::make_unique<Marked>(device_->make(ranks));
}

}  // namespace gt
