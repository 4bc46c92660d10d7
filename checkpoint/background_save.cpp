#include "checkpoint/background_save.h"

#include <cstring>

#include "checkpoint/world.h"
#include "kernels/core/host.h"
#include "kernels/core/out_of_memory.h"

namespace gt {

BackgroundSave::BackgroundSave(Vfs& vfs, const Mesh& mesh, const DeviceApi& api, Stream stream)
    : vfs_(vfs), mesh_(mesh), api_(api), stream_(stream), staging_(api) {}

BackgroundSave::~BackgroundSave() { join(); }

void BackgroundSave::reserve(int64_t bytes) {
  if (bytes > staging_.bytes()) std::memset(staging_.reserve(bytes), 0, static_cast<size_t>(bytes));
}

void BackgroundSave::join() {
  if (thread_.joinable()) thread_.join();
}

// Runs `body` on a new thread; stores anything it throws.
template <class Body>
void BackgroundSave::launch(Body body) {
  join();
  done_.store(false, std::memory_order_relaxed);
  failure_.reset();
  thread_ = std::thread([this, body] {
    const MemoryPurpose purpose("the checkpoint");
    try {
      body();
    } catch (const Error& e) { failure_ = e; } catch (const std::exception& e) {
      failure_ = Error(e.what());
    } catch (...) { failure_ = Error("unknown exception"); }
    done_.store(true, std::memory_order_release);
  });
}

SaveOutcome BackgroundSave::drop(const Error& e) {
  if (mesh_.rank() == 0) attempt_->abandon();
  attempt_.reset();
  phase_ = Phase::kIdle;
  SaveOutcome out;
  out.step = step_;
  out.error = save_error(step_, e);
  return out;
}

std::optional<SaveOutcome> BackgroundSave::start(const std::string& dir, const TrainState& state,
                                                 std::span<const ShardView> views, std::vector<AuxFile> aux,
                                                 const SaveOptions& options) {
  GT_CHECK(!busy(), "the save of step ", step_, " is still under way");
  begin_ = now();
  step_ = state.step;
  aux_ = std::move(aux);
  attempt_ = std::make_unique<SaveAttempt>(vfs_, dir, state, options, mesh_, api_, stream_);
  try {
    attempt_->plan(views);
    attempt_->begin();
    all_or_none(mesh_, [&] { attempt_->snapshot(staging_); });
  } catch (const Error& e) { return drop(e); }
  phase_ = Phase::kWriting;
  launch([this] { attempt_->write(); });
  return std::nullopt;
}

std::optional<SaveOutcome> BackgroundSave::advance() {
  GT_CHECK(busy(), "no save is under way");
  join();
  try {
    all_or_none(mesh_, [&] {
      if (failure_) throw *failure_;
    });
  } catch (const Error& e) { return drop(e); }
  if (phase_ == Phase::kWriting) {
    attempt_->gather_hashes();
    phase_ = Phase::kCommitting;
    report_ = {};
    launch([this] {
      if (mesh_.rank() != 0) return;
      attempt_->commit(aux_);
      const double seconds = now() - begin_;
      report_ = attempt_->after();
      report_.seconds = seconds;
    });
    return std::nullopt;
  }
  SaveOutcome out;
  out.step = step_;
  out.report = std::move(report_);
  attempt_.reset();
  phase_ = Phase::kIdle;
  return out;
}

std::optional<SaveOutcome> BackgroundSave::finish() {
  while (busy())
    if (auto outcome = advance()) return outcome;
  return std::nullopt;
}

}  // namespace gt
