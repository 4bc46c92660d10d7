#include "parallel/proof/shadow.h"

#include <algorithm>
#include <iterator>

namespace gt::proof {

const char* name_of(Along a) {
  switch (a) {
    case Along::kPp: return "pp";
    case Along::kDp: return "dp";
    case Along::kDpInEp: return "dp inside of ep";
    case Along::kCp: return "cp";
    case Along::kCpInEp: return "cp inside of ep";
    case Along::kTp: return "tp";
    case Along::kKv: return "tp ranks of one KV head";
    case Along::kTied: return "stages of the tied table";
  }
  return "";
}

std::string to_string(AxisType t) {
  switch (t.kind) {
    case Kind::kZero: return "zeros";
    case Kind::kSame: return "equal on every rank";
    case Kind::kSplit:
      return cat("split along dimension ", static_cast<int>(t.dim),
                 t.sequences ? ", by sequences"
                 : t.experts ? ", by experts"
                             : "");
    case Kind::kPartial: return "partial sums";
    case Kind::kShard: return "shards of the flattened tensor";
    case Kind::kVaries: return "values of their own ranks";
  }
  return "";
}

void Shadow::cut(uintptr_t at) {
  auto it = runs_.lower_bound(at);
  if (it == runs_.begin()) return;
  --it;
  if (it->second.end <= at) return;
  runs_.emplace(at, Run{it->second.end, it->second.type, it->second.call});
  it->second.end = at;
}

void Shadow::forget(const Tensor& t) {
  cut(begin(t));
  cut(end(t));
  runs_.erase(runs_.lower_bound(begin(t)), runs_.lower_bound(end(t)));
}

void Shadow::write(const Tensor& t, const LayoutType& type) {
  if (t.bytes() == 0) return;
  forget(t);
  runs_.emplace(begin(t), Run{end(t), type, call});
}

std::optional<LayoutType> Shadow::read(const Tensor& t) const {
  std::optional<LayoutType> all;
  auto it = runs_.upper_bound(begin(t));
  if (it != runs_.begin() && std::prev(it)->second.end > begin(t)) --it;
  uintptr_t covered = begin(t);
  for (; it != runs_.end() && it->first < end(t); ++it) {
    if (it->first > covered) return {};
    covered = it->second.end;
    if (!all) all = it->second.type;
    for (int k = 0; k < kAlong; ++k) {
      AxisType &a = all->axes[static_cast<size_t>(k)], b = it->second.type.axes[static_cast<size_t>(k)];
      if (a.kind == Kind::kZero) a = b;
      if (b.kind != Kind::kZero && !(a == b)) return {};
    }
  }
  if (covered < end(t)) return {};
  return all;
}

bool Shadow::written(const Tensor& t) const {
  const auto it = runs_.lower_bound(end(t));
  return it != runs_.begin() && std::prev(it)->second.end > begin(t);
}

int64_t Shadow::last_write(const Tensor& t) const {
  int64_t last = 0;
  auto it = runs_.upper_bound(begin(t));
  if (it != runs_.begin()) --it;
  for (; it != runs_.end() && it->first < end(t); ++it)
    if (it->second.end > begin(t)) last = std::max(last, it->second.call);
  return last;
}

}  // namespace gt::proof
