#include "parallel/pipeline/action_graphs.h"

#include <algorithm>
#include <thread>

namespace gt {
namespace {

constexpr size_t kMostGraphs = 512;  // distinct keys; a graph of a large model takes megabytes

int64_t bytes_of(const MicroBatch& mb) {
  int64_t sum = align_up(mb.dloss.bytes()) + kAlign;  // upstream gradients; the ordinal
  for (const Tensor& t : {mb.tokens, mb.targets, mb.positions, mb.types, mb.lengths, mb.pairs})
    sum += t ? align_up(t.bytes()) : 0;
  return sum;
}

}  // namespace

ActionGraphs::ActionGraphs(const Backend& recorder, Stream s, int slots)
    : recorder_(recorder), stream_(s), slots_(slots), read_(recorder.device->create_event(s.device.index)) {}

ActionGraphs::~ActionGraphs() {
  entries_.clear();
  recorder_.device->destroy_event(read_);
}

// Another shape makes other calls and invalidates all recordings.
void ActionGraphs::begin_run(std::span<const MicroBatch> list) {
  on_ = recorder_.replays;
  why_.clear();
  int64_t bytes = 0;
  seeds_differ_ = false;
  for (const MicroBatch& mb : list) {
    bytes = std::max(bytes, bytes_of(mb));
    seeds_differ_ = seeds_differ_ || mb.dloss.data != list.front().dloss.data;
    if (mb.batch == list.front().batch && mb.seq == list.front().seq) continue;
    on_ = false, why_ = "microbatches of several shapes";
  }
  if (!on_) return;
  if (list.front().batch != batch_ || list.front().seq != seq_ || bytes > slot_bytes_) {
    entries_.clear();
    batch_ = list.front().batch, seq_ = list.front().seq;
  }
  if (bytes > slot_bytes_) {
    slot_bytes_ = bytes;
    inputs_ = Buffer();
    inputs_ = Buffer(slots_ * slot_bytes_, stream_.device, *recorder_.device);
  }
  while (!recorder_.device->done(read_)) std::this_thread::yield();  // normally long done: the host waits once a step
  if (list.size() > ordinals_.size()) ordinals_ = HostArray<int64_t>(list.size(), *recorder_.device);
  for (size_t k = 0; k < list.size(); ++k) ordinals_[k] = list[k].first_sample;
}

void ActionGraphs::end_run() {
  if (on_) recorder_.device->record(read_, stream_);
}

MicroBatch ActionGraphs::bring(int slot, int k, const MicroBatch& mb) {
  if (!on_) return mb;
  MicroBatch here = mb;
  std::byte* at = inputs_.data() + slot * slot_bytes_;
  const auto copy_in = [&](const void* from, int64_t bytes) {
    recorder_.device->copy(at, from, bytes, stream_);
    at += align_up(bytes);
    return at - align_up(bytes);
  };
  for (Tensor* t : {&here.tokens, &here.targets, &here.positions, &here.types, &here.lengths, &here.pairs})
    if (*t) *t = {copy_in(t->data, t->bytes()), t->shape, t->dtype, stream_.device};
  if (seeds_differ_) here.dloss.data = copy_in(here.dloss.data, here.dloss.bytes());
  here.first_sample_at = reinterpret_cast<const int64_t*>(copy_in(&ordinals_[k], sizeof(int64_t)));
  return here;
}

HeldGraphs ActionGraphs::held() const {
  HeldGraphs sum;
  for (const auto& e : entries_) sum.add(e->recording.held());
  return sum;
}

Recording* ActionGraphs::recording(const ActionKey& key) {
  if (!on_) return nullptr;
  for (const auto& e : entries_)
    if (e->key == key) return &e->recording;
  if (entries_.size() == kMostGraphs) {
    why_ = cat("there are more than ", kMostGraphs, " kinds of actions");
    return nullptr;
  }
  entries_.push_back(std::unique_ptr<Entry>(new Entry{key, {recorder_, stream_}}));
  return &entries_.back()->recording;
}

}  // namespace gt
