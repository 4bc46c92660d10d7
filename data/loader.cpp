#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/memory.h"

namespace gt {
namespace {
using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }
}  // namespace

struct Loader::Impl {
  // One step in flight: host memory, device memory, events. On the CPU both memories are one and there are no events.
  struct Slot {
    std::byte* host = nullptr;
    Buffer device;
    Event copied = nullptr, used = nullptr;
    bool in_flight = false;  // `copied` and `used` have been recorded
    std::vector<MicroBatch> batches;
    int64_t tokens = 0, after = 0;  // unmasked targets; consumed samples after this step
    std::exception_ptr error;
    bool end = false;
  };

  Impl(const Dataset& d, const LoaderConfig& c, Device device, const DeviceApi& a, Stream s);
  ~Impl();
  void start();
  void stop();
  void read_loop();
  void cut(Slot& slot, int64_t length);
  void fill(Slot& slot, int64_t base);
  void publish(Slot& slot);
  void gather(Slot& slot, int k, int64_t first);
  void read_ahead(int64_t base) const;
  int64_t step_begin(int64_t base) const;

  const Dataset& dataset;
  const LoaderConfig config;
  const Device device;
  const DeviceApi& api;
  const Stream compute;
  const bool reads, asynchronous;  // this rank needs data and has memory; copies run on a stream
  Stream copy_stream;
  int64_t global_batch = 0, plane = 0;  // samples per step; bytes of all tokens (or all targets) of a step
  std::vector<int32_t> sample;          // scratch of the reader, seq + 1
  std::vector<Slot> slots;

  std::mutex mutex;
  std::condition_variable changed;
  int64_t produced = 0, taken = 0, released = 0;  // steps since the last start
  bool stopping = false;
  int64_t begin_at = 0;  // start ordinal of the reader
  int64_t consumed = 0, step_tokens = 0;
  double waited = 0, worked = 0;
  std::thread reader;
};

Loader::Impl::Impl(const Dataset& d, const LoaderConfig& c, Device dev, const DeviceApi& a, Stream s)
    : dataset(d),
      config(c),
      device(dev),
      api(a),
      compute(s),
      reads((c.need_tokens || c.need_targets) && dev.kind != DeviceKind::kNull),
      asynchronous(reads && dev.kind == DeviceKind::kCuda) {
  GT_REQUIRE(c.seq >= 1 && c.seq == d.seq(), Exit::kUsage, "loader: seq ", c.seq, ", the dataset was opened for ",
             d.seq());
  GT_REQUIRE(c.micro_batch >= 1 && c.microbatches >= 1, Exit::kUsage,
             "loader: expected micro_batch and microbatches of at least 1, found ", c.micro_batch, " and ",
             c.microbatches);
  GT_REQUIRE(c.dp_size >= 1 && c.dp_rank >= 0 && c.dp_rank < c.dp_size, Exit::kUsage, "loader: dp rank ", c.dp_rank,
             " of ", c.dp_size);
  GT_REQUIRE(c.prefetch >= 1, Exit::kUsage, "data.prefetch: expected at least 1, found ", c.prefetch);
  GT_REQUIRE(c.first_sample >= 0, Exit::kUsage, "loader: expected a first sample of 0 or more, found ", c.first_sample);
  GT_REQUIRE(!c.eod_mask_loss || c.eod >= 0, Exit::kUsage,
             "data.eod_mask_loss: the tokenizer has no end-of-document token");
  for (const auto& [first, last] : c.skip_windows)
    GT_REQUIRE(first >= 0 && first <= last, Exit::kUsage, "skip_windows: expected first <= last, found [", first, ", ",
               last, ")");
  global_batch = c.micro_batch * c.microbatches * c.dp_size;
  plane = align_up(c.micro_batch * c.seq * 4) * c.microbatches;
  sample.resize(static_cast<size_t>(c.seq + 1));
  if (asynchronous) copy_stream = api.open_stream(device.index, 1);
  slots.resize(static_cast<size_t>(c.prefetch) + 1);
  for (Slot& slot : slots) {
    const int64_t bytes = plane * ((c.need_tokens ? 1 : 0) + (c.need_targets ? 1 : 0));
    slot.device = Buffer(bytes, device, api);
    slot.host = asynchronous ? static_cast<std::byte*>(api.alloc_host(bytes)) : slot.device.data();
    if (asynchronous) slot.copied = api.create_event(device.index), slot.used = api.create_event(device.index);
    slot.batches.resize(static_cast<size_t>(c.microbatches));
    for (int k = 0; k < c.microbatches; ++k) {
      MicroBatch& m = slot.batches[static_cast<size_t>(k)];
      m.batch = c.micro_batch;
      m.seq = c.seq;
      const int64_t at = plane / c.microbatches * k;
      if (c.need_tokens) m.tokens = slot.device.tensor({m.batch, m.seq}, DType::kI32, at);
      if (c.need_targets)
        m.targets = slot.device.tensor({m.batch, m.seq}, DType::kI32, at + (c.need_tokens ? plane : 0));
    }
  }
  consumed = begin_at = c.first_sample;
}

Loader::Impl::~Impl() {
  stop();
  if (!asynchronous) return;
  try {
    api.synchronize(copy_stream);
  } catch (const Error&) {}  // a lost device reads no host memory; its error is already propagating
  for (Slot& s : slots) {
    api.destroy_event(s.copied);
    api.destroy_event(s.used);
    api.free_host(s.host, plane * ((config.need_tokens ? 1 : 0) + (config.need_targets ? 1 : 0)));
  }
  api.close_stream(copy_stream);
}

void Loader::Impl::start() {
  produced = taken = released = 0;
  stopping = false;
  reader = std::thread([this] { read_loop(); });
}

void Loader::Impl::stop() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  changed.notify_all();
  if (reader.joinable()) reader.join();
}

int64_t Loader::Impl::step_begin(int64_t base) const {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [first, last] : config.skip_windows)
      if (base >= first && base < last) base = last, moved = true;
  }
  return base;
}

void Loader::Impl::read_loop() {
  for (int64_t base = begin_at;; base += global_batch) {
    Slot* slot = nullptr;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stopping || produced - released < static_cast<int64_t>(slots.size()); });
      if (stopping) return;
      slot = &slots[static_cast<size_t>(produced) % slots.size()];
    }
    const auto began = Clock::now();
    base = step_begin(base);
    slot->end = config.total_samples > 0 && base >= config.total_samples;
    slot->error = nullptr;
    try {
      if (!slot->end) {
        if (config.curriculum) cut(*slot, config.curriculum.length(config.first_step + produced));
        fill(*slot, base);
        if (asynchronous) publish(*slot);
        if (reads) read_ahead(base + 2 * global_batch);
      }
    } catch (...) { slot->error = std::current_exception(); }
    const bool last = slot->end || slot->error;
    {
      const std::lock_guard lock(mutex);
      ++produced;
      worked += seconds_since(began);
    }
    changed.notify_all();
    if (last) return;
  }
}

// Starts readahead for the step after the next one: disk reads of its documents, and building its epoch's order.
void Loader::Impl::read_ahead(int64_t base) const {
  for (int k = 0; k < config.microbatches; ++k) {
    const int64_t first = base + (int64_t{k} * config.dp_size + config.dp_rank) * config.micro_batch;
    const int64_t end = config.total_samples > 0 ? std::min(first + config.micro_batch, config.total_samples)
                                                 : first + config.micro_batch;
    if (first < end) dataset.read_ahead(first, end - first);
  }
}

// Shortens microbatches to `length` tokens per sequence, at the start of the full-size buffers.
void Loader::Impl::cut(Slot& slot, int64_t length) {
  GT_CHECK(length >= 1 && length <= config.seq, "a curriculum of ", length, " tokens, samples of ", config.seq);
  for (MicroBatch& m : slot.batches) {
    m.seq = length;
    if (m.tokens) m.tokens.shape = {m.batch, length};
    if (m.targets) m.targets.shape = {m.batch, length};
  }
}

void Loader::Impl::fill(Slot& slot, int64_t base) {
  if (config.test_read_ms > 0)
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(config.test_read_ms));
  // The slot's previous step may still be copying from this host memory.
  if (slot.in_flight)
    while (!api.done(slot.copied)) std::this_thread::sleep_for(std::chrono::microseconds(50));
  slot.tokens = 0;
  for (int k = 0; k < config.microbatches; ++k) {
    const int64_t first = base + (int64_t{k} * config.dp_size + config.dp_rank) * config.micro_batch;
    MicroBatch& mb = slot.batches[static_cast<size_t>(k)];
    mb.first_sample = first;
    const int64_t before = slot.tokens;
    if (reads) {
      gather(slot, k, first);
    } else {
      const int64_t real = config.total_samples > 0
                               ? std::clamp<int64_t>(config.total_samples - first, 0, config.micro_batch)
                               : config.micro_batch;
      slot.tokens += real * mb.seq;
    }
    mb.loss_tokens = config.need_targets || !config.eod_mask_loss ? slot.tokens - before : -1;
  }
  if (!config.need_targets && config.eod_mask_loss) slot.tokens = -1;
  slot.after = base + global_batch;
}

void Loader::Impl::gather(Slot& slot, int k, int64_t first) {
  const int64_t at = plane / config.microbatches * k;
  auto* tokens = reinterpret_cast<int32_t*>(slot.host + at);
  auto* targets = reinterpret_cast<int32_t*>(slot.host + at + (config.need_tokens ? plane : 0));
  const int64_t length = slot.batches[static_cast<size_t>(k)].seq;
  const auto seq = static_cast<size_t>(length);
  for (int64_t i = 0; i < config.micro_batch; ++i, tokens += seq, targets += seq) {
    const bool real = config.total_samples == 0 || first + i < config.total_samples;
    if (real) dataset.fetch(first + i, sample);
    if (config.need_tokens) {
      if (real)
        std::memcpy(tokens, sample.data(), seq * 4);
      else
        std::fill_n(tokens, seq, 0);
    }
    if (!config.need_targets) {
      slot.tokens += real ? length : 0;
      continue;
    }
    if (!real) {
      std::fill_n(targets, seq, -1);
      continue;
    }
    std::memcpy(targets, sample.data() + 1, seq * 4);
    slot.tokens += length;
    if (!config.eod_mask_loss) continue;
    for (size_t j = 0; j < seq; ++j)
      if (targets[j] == config.eod) targets[j] = -1, --slot.tokens;
  }
}

// Queues the copy to the device: after the work that still uses the slot's device memory, before this step's event.
void Loader::Impl::publish(Slot& slot) {
  if (slot.in_flight) api.wait(slot.used, copy_stream);
  const int64_t piece = plane / config.microbatches,
                planes = (config.need_tokens ? 1 : 0) + (config.need_targets ? 1 : 0);
  for (int k = 0; k < config.microbatches; ++k)
    for (int64_t p = 0; p < planes; ++p)
      api.copy(slot.device.data() + p * plane + piece * k, slot.host + p * plane + piece * k,
               config.micro_batch * slot.batches[static_cast<size_t>(k)].seq * 4, copy_stream);
  api.record(slot.copied, copy_stream);
  slot.in_flight = true;
}

Loader::Loader(const Dataset& dataset, const LoaderConfig& config, Device device, const DeviceApi& api, Stream compute)
    : impl_(new Impl(dataset, config, device, api, compute)) {
  impl_->start();
}

Loader::~Loader() = default;

std::span<const MicroBatch> Loader::next() {
  Impl& m = *impl_;
  std::unique_lock lock(m.mutex);
  if (m.taken > m.released) {  // the previous step is queued by now: its slot is free after that work
    Impl::Slot& before = m.slots[static_cast<size_t>(m.released) % m.slots.size()];
    if (m.asynchronous) m.api.record(before.used, m.compute);
    m.released = m.taken;
    m.changed.notify_all();
  }
  if (m.produced == m.taken) {
    const auto began = Clock::now();
    m.changed.wait(lock, [&] { return m.produced > m.taken; });
    m.waited += seconds_since(began);
  }
  Impl::Slot& slot = m.slots[static_cast<size_t>(m.taken) % m.slots.size()];
  if (slot.error) std::rethrow_exception(slot.error);
  if (slot.end) return {};
  if (m.asynchronous) m.api.wait(slot.copied, m.compute);
  ++m.taken;
  m.consumed = slot.after;
  m.step_tokens = slot.tokens;
  return slot.batches;
}

void Loader::restore(int64_t first_sample) {
  GT_REQUIRE(first_sample >= 0, Exit::kUsage, "loader: expected a first sample of 0 or more, found ", first_sample);
  Impl& m = *impl_;
  m.stop();
  if (m.asynchronous)  // returned steps may still be in use, and every slot is reused
    for (Impl::Slot& s : m.slots)
      if (s.in_flight) m.api.record(s.used, m.compute);
  m.consumed = m.begin_at = first_sample;
  m.start();
}

int64_t Loader::consumed() const { return impl_->consumed; }
int64_t Loader::step_tokens() const { return impl_->step_tokens; }
double Loader::wait_seconds() const { return impl_->waited; }
double Loader::read_seconds() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->worked;
}

}  // namespace gt
