#include "launch/tools/bench/op_times.h"

#include <time.h>

#include <algorithm>
#include <barrier>
#include <exception>
#include <thread>

#include "launch/tools/bench/bench_stats.h"
#include "launch/tools/bench/op_replay.h"

namespace gt {
namespace {

constexpr double kEnoughSeconds = 4e-3;
constexpr size_t kLeastSamples = 3, kMostSamples = 50;
constexpr double kTurnedBytes = 32 << 20;  // that a thread cycles through: beyond its share of the caches
constexpr size_t kMostCopies = 32;

// Copies of a call, replayed in turn: in a step other ops lie between two calls.
std::vector<std::unique_ptr<OpReplay>> copies_of(const OpCall& call, const DeviceBench& bench, int64_t vocab) {
  const double copies = kTurnedBytes / std::max(call.cost.bytes, 1.);
  std::vector<std::unique_ptr<OpReplay>> out;
  for (size_t k = 0; k < std::clamp(static_cast<size_t>(copies), size_t{1}, kMostCopies); ++k)
    out.push_back(std::make_unique<OpReplay>(call, bench, vocab, k > 0 ? out.front().get() : nullptr));
  return out;
}

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// `alone`: the calling thread executes the ops itself. Its CPU time counts then, without the time in which other
// programs hold the core: long calls are interrupted more often than short ones. `changed`: each call follows an update
// of its weight.
double time_copies(const std::vector<std::unique_ptr<OpReplay>>& copies, const DeviceBench& bench, bool alone,
                   bool changed) {
  std::vector<double> seconds;
  double spent = 0;
  while (seconds.size() < kLeastSamples || (spent < kEnoughSeconds && seconds.size() < kMostSamples)) {
    for (const auto& one : copies)
      if (changed) one->change_weight();
    const double begin = thread_seconds();
    double all = bench.timed([&] {
      for (const auto& one : copies) (*one)();
    });
    if (alone) all = thread_seconds() - begin;
    seconds.push_back(all / static_cast<double>(copies.size()));
    spent += all;
  }
  return spread_of(seconds).p10;
}

}  // namespace

OpTimer::OpTimer(const Backend& backend, int device, int threads, int together)
    : alone_(backend.kind == DeviceKind::kCpu && threads == 1) {
  for (int k = 0; k < together; ++k) benches_.push_back(std::make_unique<DeviceBench>(backend, device, threads));
}

OpSeconds OpTimer::seconds(const OpCall& call, int64_t vocab) const {
  std::vector<OpSeconds> of(benches_.size());
  std::vector<std::exception_ptr> errors(benches_.size());
  std::barrier ready(static_cast<ptrdiff_t>(benches_.size()));
  const auto work = [&](size_t k) {
    std::vector<std::unique_ptr<OpReplay>> copies;
    try {
      copies = copies_of(call, *benches_[k], vocab);
      for (const auto& one : copies) benches_[k]->timed([&] { (*one)(); });  // packs weights, allocates scratch
    } catch (...) { errors[k] = std::current_exception(); }
    ready.arrive_and_wait();
    if (errors[k]) return;
    try {
      of[k].call = time_copies(copies, *benches_[k], alone_, false);
      if (call.packs > 0) of[k].pack = std::max(0., time_copies(copies, *benches_[k], alone_, true) - of[k].call);
    } catch (...) { errors[k] = std::current_exception(); }
  };
  {
    std::vector<std::jthread> others;
    for (size_t k = 1; k < benches_.size(); ++k) others.emplace_back(work, k);
    work(0);
  }
  OpSeconds mean;
  for (size_t k = 0; k < of.size(); ++k) {
    if (errors[k]) std::rethrow_exception(errors[k]);
    mean.call += of[k].call / static_cast<double>(of.size());
    mean.pack += of[k].pack / static_cast<double>(of.size());
  }
  return mean;
}

}  // namespace gt
