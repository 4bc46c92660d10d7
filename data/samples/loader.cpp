#include "data/samples/loader.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/memory.h"
#include "kernels/core/out_of_memory.h"

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
  void copy_to_device(Slot& slot);
  void gather(Slot& slot, int k, int64_t first);
  void gather_pairs(Slot& slot, int k, int64_t first);
  int64_t put_targets(int32_t* targets, size_t seq) const;
  // Tensors of a microbatch; each that this rank needs has a plane of a slot: one part per microbatch.
  enum Plane : size_t { kTokens, kTargets, kPositions, kTypes, kLengths, kPairs, kNumPlanes };
  void reserve_plane(Plane p, bool needed, int64_t bytes);
  bool needs(size_t p) const { return piece[p] > 0; }
  int64_t offset(size_t p, int k) const { return begin[p] + piece[p] * k; }
  int32_t* on_host(const Slot& slot, size_t p, int k) const {
    return needs(p) ? reinterpret_cast<int32_t*>(slot.host + offset(p, k)) : nullptr;
  }
  static Tensor& tensor_of(MicroBatch& m, size_t p) {
    Tensor* const all[] = {&m.tokens, &m.targets, &m.positions, &m.types, &m.lengths, &m.pairs};
    return *all[p];
  }
  static bool per_token(size_t p) { return p < kLengths; }  // [batch, seq]; the others [batch]
  void read_ahead(int64_t base) const;
  int64_t step_begin(int64_t base) const;

  const Dataset& dataset;
  const LoaderConfig config;
  const Device device;
  const DeviceApi& api;
  const Stream compute;
  const bool masks;                // some targets may carry no loss
  const bool reads, asynchronous;  // this rank needs data and has memory; copies run on a stream
  Stream copy_stream;
  int64_t global_batch = 0, slot_bytes = 0;          // samples per step
  std::array<int64_t, kNumPlanes> begin{}, piece{};  // of planes within a slot; of a microbatch in it
  std::vector<int32_t> sample;                       // scratch of the reader: Dataset::row; empty: not read
  std::vector<int32_t> positions;                    // the same, seq + 1
  std::vector<uint8_t> loss;
  std::vector<Slot> slots;

  std::mutex mutex;
  std::condition_variable changed;
  int64_t produced = 0, taken = 0, released = 0;  // steps since the last start
  bool stopping = false;
  int64_t begin_at = 0;  // start ordinal of the reader
  int64_t consumed = 0, step_tokens = 0;
  double waited = 0;
  std::thread reader;
};

Loader::Impl::Impl(const Dataset& d, const LoaderConfig& c, Device dev, const DeviceApi& a, Stream s)
    : dataset(d),
      config(c),
      device(dev),
      api(a),
      compute(s),
      masks(c.eod_mask_loss || c.documents || d.masked() || d.pairs()),
      reads((c.need_tokens || c.need_targets || c.documents || d.pairs()) && dev.kind != DeviceKind::kNull),
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
  GT_REQUIRE(!d.pairs() || (!c.documents && !d.masked()), Exit::kUsage,
             "loader: sentence pairs have neither packed documents nor loss masks");
  for (const auto& [first, last] : c.skip_windows)
    GT_REQUIRE(first >= 0 && first <= last, Exit::kUsage, "skip_windows: expected first <= last, found [", first, ", ",
               last, ")");
  global_batch = c.micro_batch * c.microbatches * c.dp_size;
  const int64_t table = c.micro_batch * c.seq * 4, row = c.micro_batch * 4;
  reserve_plane(kTokens, c.need_tokens, table);
  reserve_plane(kTargets, c.need_targets, table);
  reserve_plane(kPositions, c.documents, table);
  reserve_plane(kTypes, c.need_tokens && d.pairs(), table);
  reserve_plane(kLengths, d.pairs(), row);
  reserve_plane(kPairs, c.need_targets && d.pairs(), row);
  if (c.need_tokens || c.need_targets || d.pairs()) sample.resize(static_cast<size_t>(d.row()));
  if (c.need_targets && d.masked()) loss.resize(static_cast<size_t>(c.seq + 1));
  if (c.documents) positions.resize(static_cast<size_t>(c.seq + 1));
  if (asynchronous) copy_stream = api.open_stream(device.index, 1);
  slots.resize(static_cast<size_t>(c.prefetch) + 1);
  for (Slot& slot : slots) {
    slot.device = Buffer(slot_bytes, device, api);
    slot.host = asynchronous ? static_cast<std::byte*>(api.alloc_host(slot_bytes)) : slot.device.data();
    if (asynchronous) slot.copied = api.create_event(device.index), slot.used = api.create_event(device.index);
    slot.batches.resize(static_cast<size_t>(c.microbatches));
    for (int k = 0; k < c.microbatches; ++k) {
      MicroBatch& m = slot.batches[static_cast<size_t>(k)];
      m.batch = c.micro_batch;
      m.seq = c.seq;
      for (size_t p = 0; p < kNumPlanes; ++p)
        if (needs(p))
          tensor_of(m, p) =
              slot.device.tensor(per_token(p) ? Shape{m.batch, m.seq} : Shape{m.batch}, DType::kI32, offset(p, k));
    }
  }
  consumed = begin_at = c.first_sample;
}

void Loader::Impl::reserve_plane(Plane p, bool needed, int64_t bytes) {
  begin[p] = slot_bytes;
  piece[p] = needed ? align_up(bytes) : 0;
  slot_bytes += piece[p] * config.microbatches;
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
    api.free_host(s.host, slot_bytes);
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
  const MemoryPurpose purpose("the next batch");
  for (int64_t base = begin_at;; base += global_batch) {
    Slot* slot = nullptr;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stopping || produced - released < static_cast<int64_t>(slots.size()); });
      if (stopping) return;
      slot = &slots[static_cast<size_t>(produced) % slots.size()];
    }
    base = step_begin(base);
    slot->end = config.total_samples > 0 && base >= config.total_samples;
    slot->error = nullptr;
    try {
      if (!slot->end) {
        if (config.curriculum) cut(*slot, config.curriculum.length(config.first_step + produced));
        fill(*slot, base);
        if (asynchronous) copy_to_device(*slot);
        if (reads) read_ahead(base + 2 * global_batch);
      }
    } catch (...) { slot->error = std::current_exception(); }
    const bool last = slot->end || slot->error;
    {
      const std::lock_guard lock(mutex);
      ++produced;
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
    for (size_t p = 0; p < kNumPlanes; ++p)
      if (needs(p) && per_token(p)) tensor_of(m, p).shape = {m.batch, length};
  }
}

void Loader::Impl::fill(Slot& slot, int64_t base) {
  // The slot's previous step may still be copying from this host memory.
  if (slot.in_flight)
    while (!api.done(slot.copied)) std::this_thread::sleep_for(std::chrono::microseconds(50));
  slot.tokens = 0;
  for (int k = 0; k < config.microbatches; ++k) {
    const int64_t first = base + (int64_t{k} * config.dp_size + config.dp_rank) * config.micro_batch;
    MicroBatch& mb = slot.batches[static_cast<size_t>(k)];
    mb.first_sample = first;
    const int64_t before = slot.tokens;
    if (reads && dataset.pairs()) {
      gather_pairs(slot, k, first);
    } else if (reads) {
      gather(slot, k, first);
    } else {
      const int64_t real = config.total_samples > 0
                               ? std::clamp<int64_t>(config.total_samples - first, 0, config.micro_batch)
                               : config.micro_batch;
      slot.tokens += real * mb.seq;
    }
    mb.loss_tokens = config.need_targets || !masks ? slot.tokens - before : -1;
  }
  if (!config.need_targets && masks) slot.tokens = -1;
  slot.after = base + global_batch;
}

void Loader::Impl::gather(Slot& slot, int k, int64_t first) {
  const int64_t length = slot.batches[static_cast<size_t>(k)].seq;
  const auto row = [&](size_t p, int64_t i) { return on_host(slot, p, k) + i * length; };
  const auto seq = static_cast<size_t>(length);
  for (int64_t i = 0; i < config.micro_batch; ++i) {
    const bool real = config.total_samples == 0 || first + i < config.total_samples;
    if (real) dataset.read(first + i, {sample, loss, positions});
    if (config.documents) {
      if (!real) std::iota(positions.begin(), positions.end(), 0);
      std::memcpy(row(kPositions, i), positions.data(), seq * 4);
    }
    if (config.need_tokens) {
      if (real)
        std::memcpy(row(kTokens, i), sample.data(), seq * 4);
      else
        std::fill_n(row(kTokens, i), seq, 0);
    }
    if (!config.need_targets)
      slot.tokens += real ? length : 0;
    else if (real)
      slot.tokens += put_targets(row(kTargets, i), seq);
    else
      std::fill_n(row(kTargets, i), seq, -1);
  }
}

// Targets of the sample that was read, -1 where they carry no loss; returns how many do.
int64_t Loader::Impl::put_targets(int32_t* targets, size_t seq) const {
  std::memcpy(targets, sample.data() + 1, seq * 4);
  if (!masks) return static_cast<int64_t>(seq);
  int64_t count = 0;
  for (size_t j = 0; j < seq; ++j) {
    const bool masked = (config.eod_mask_loss && targets[j] == config.eod) || (!loss.empty() && loss[j + 1] == 0) ||
                        (config.documents && positions[j + 1] == 0);
    if (masked) targets[j] = -1;
    count += masked ? 0 : 1;
  }
  return count;
}

// A sample beyond the last one is a sequence of one token without loss.
void Loader::Impl::gather_pairs(Slot& slot, int k, int64_t first) {
  int32_t *tokens = on_host(slot, kTokens, k), *targets = on_host(slot, kTargets, k), *types = on_host(slot, kTypes, k);
  int32_t *lengths = on_host(slot, kLengths, k), *pairs = on_host(slot, kPairs, k);
  const PairRow row{sample, config.seq};
  for (int64_t i = 0; i < config.micro_batch; ++i) {
    const bool real = config.total_samples == 0 || first + i < config.total_samples;
    if (real) {
      dataset.fetch(first + i, sample);
    } else {
      std::fill(sample.begin(), sample.end(), 0);
      std::fill(row.targets().begin(), row.targets().end(), -1);
      row.length() = 1, row.label() = -1;
    }
    lengths[i] = row.length();
    if (tokens != nullptr) {
      std::copy(row.tokens().begin(), row.tokens().end(), tokens + i * config.seq);
      std::copy(row.types().begin(), row.types().end(), types + i * config.seq);
    }
    if (targets == nullptr) continue;
    std::copy(row.targets().begin(), row.targets().end(), targets + i * config.seq);
    pairs[i] = row.label();
    slot.tokens += std::count_if(row.targets().begin(), row.targets().end(), [](int32_t t) { return t >= 0; });
  }
}

// Queues the copy to the device: after the work that still uses the slot's device memory, before this step's event.
void Loader::Impl::copy_to_device(Slot& slot) {
  if (slot.in_flight) api.wait(slot.used, copy_stream);
  for (int k = 0; k < config.microbatches; ++k)
    for (size_t p = 0; p < kNumPlanes; ++p)
      if (needs(p))
        api.copy(slot.device.data() + offset(p, k), slot.host + offset(p, k),
                 tensor_of(slot.batches[static_cast<size_t>(k)], p).bytes(), copy_stream);
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
bool Loader::masks() const { return impl_->masks; }
double Loader::wait_seconds() const { return impl_->waited; }

}  // namespace gt
