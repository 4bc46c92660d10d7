#include "parallel/zero/gatherer.h"

#include <algorithm>

#include "kernels/core/hash/state_hash.h"
#include "parallel/zero/fp8_weights.h"
#include "parallel/zero/int8_weights.h"
#include "parallel/zero/weight_quantizer.h"

namespace gt {
namespace {

constexpr size_t kInUse = 3;  // units of one module, and the one before

// Unsharded int8 codes: held, or gathered behind the values.
Tensor codes_in_use(const UnitState& s) {
  if (!s.values_sharded) return s.held_values();
  return {s.gathered.data + align_up(s.gathered.bytes()), {s.layout.size}, DType::kI8, s.gathered.device};
}

}  // namespace

ValueGatherer::ValueGatherer(Stream compute, int prefetch)
    : compute_(compute), prefetch_(static_cast<size_t>(prefetch)) {
  GT_CHECK(prefetch >= 0, "prefetch ", prefetch);
  live_.reserve(prefetch_ + kInUse);
  current_.reserve(kInUse);
}

void ValueGatherer::allocate(int64_t bytes, const Backend& backend) {
  pool_ = TwoEndedPool(Buffer(bytes, compute_.device, *backend.device));
  pool_.reserve(prefetch_ + kInUse);
}

void ValueGatherer::begin(const Order* order) {
  drop_all();
  order_ = order;
  next_ = 0;
  if (order_ != nullptr) prefetch();
}

// Values that need no all-gather are dequantized when they are used.
void ValueGatherer::prefetch() {
  for (size_t k = next_; k < std::min(next_ + prefetch_, order_->size()); ++k)
    if ((*order_)[k]->values_sharded) gather(*(*order_)[k]);
}

void ValueGatherer::acquire(UnitState& s) {
  if (!in_use(s)) advance(s);
  s.gathering.wait(compute_);
  if (!s.prepared) {
    if (s.quantizes()) quantizer_->apply(s, s.gathered);
    if (s.int8) int8_->dequantize(s, codes_in_use(s), s.gathered);
    const Fp8Weights::Unit codes{&s, s.gathered, s.gathered.data + align_up(s.gathered.bytes())};
    if (fp8_ != nullptr) fp8_->quantize({&codes, 1});
    s.prepared = true;
  }
  ++s.users;
}

void ValueGatherer::release(UnitState& s) {
  GT_CHECK(s.users > 0, s.spec.name, " is released more often than acquired");
  --s.users;  // its memory is freed when the window has moved on
}

void ValueGatherer::advance(UnitState& s) {
  if (order_ != nullptr) {
    GT_CHECK(next_ < order_->size() && (*order_)[next_] == &s, "FSDP unit ", s.spec.name,
             " is used where the order has ", next_ < order_->size() ? (*order_)[next_]->spec.name : "nothing");
    ++next_;
  }
  if (!current_.empty() && current_.front()->module() != s.module()) current_.clear();
  current_.push_back(&s);
  for (size_t k = live_.size(); k-- > 0;)
    if (!in_window(*live_[k])) drop(*live_[k]);
  gather(s);
  if (order_ != nullptr) prefetch();
}

bool ValueGatherer::in_use(const UnitState& s) const {
  return std::find(current_.begin(), current_.end(), &s) != current_.end();
}

bool ValueGatherer::in_window(const UnitState& s) const {
  if (in_use(s)) return true;
  if (order_ == nullptr) return false;
  const auto from = order_->begin() + static_cast<ptrdiff_t>(next_);
  const auto to = order_->begin() + static_cast<ptrdiff_t>(std::min(next_ + prefetch_, order_->size()));
  return std::find(from, to, &s) != to;
}

// One block for values and their FP8 data or gathered int8 codes, because the pool's two ends hold units alternately.
int64_t ValueGatherer::bytes_of(const UnitState& s) {
  const int64_t codes = s.int8 && s.values_sharded ? align_up(s.layout.size) : 0;
  return align_up(s.layout.size * size_of(s.dtype)) + Fp8Weights::bytes_of(s.spec) + codes;
}

void ValueGatherer::gather(UnitState& s) {
  if (s.gathered) return;
  s.gathered = {pool_.alloc({bytes_of(s)}, DType::kByte).data, {s.layout.size}, s.dtype, compute_.device};
  s.prepared = false;
  if (s.values_sharded)
    s.gathering = s.domain.group->all_gather(s.value_shard(), s.int8 ? codes_in_use(s) : s.gathered, compute_);
  s.bind_values(s.gathered, fresh_version());  // these bytes held another unit before: packed copies must differ
  live_.push_back(&s);
}

void ValueGatherer::drop(UnitState& s) {
  GT_CHECK(s.users == 0, s.spec.name, " is still in use");
  s.gathering.wait(compute_);
  pool_.free(s.gathered);
  s.gathered = {};
  s.unbind_values();
  Fp8Weights::hide(s);
  live_.erase(std::find(live_.begin(), live_.end(), &s));
}

void ValueGatherer::add_to(StateHash& f) const {
  for (const UnitState* s : current_) f.add(s);
  for (const UnitState* s : live_) f.add(s).add(s->gathered.data).add(uint64_t{s->prepared});
}

void ValueGatherer::drop_all() {
  while (!live_.empty()) drop(*live_.back());
  current_.clear();
}

}  // namespace gt
