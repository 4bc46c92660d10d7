#include "launch/train/save/run_copies.h"

#include <fmt/format.h>

#include "checkpoint/store/steps.h"
#include "launch/observe/sinks/progress.h"
#include "launch/ranks/agree.h"
#include "launch/ranks/copies_job.h"

namespace gt {
namespace {

constexpr std::chrono::seconds kFlushLimit{10};  // of a copy for the records of earlier steps
constexpr double kMostMemory = 0.9;              // of the machine's free memory

int64_t free_memory() {
  int64_t free = 0, total = 0;
  cpu_backend().device->memory(0, &free, &total);
  return static_cast<int64_t>(kMostMemory * static_cast<double>(free));
}

// Returns -1 if there is none, or the folder is not this job's.
int64_t newest_checkpoint(const Config& c) {
  if (c.checkpoint.resume == "never") return -1;
  const auto steps = list_steps(c.checkpoint_dir());
  return steps.empty() ? -1 : steps.front().first;
}

}  // namespace

RunCopies::RunCopies(const RankContext& rank, const Engine& engine) : rank_(rank), engine_(engine) {
  if (rank.config.fault.peer_copies == 0 || rank.run.range_test) return;
  std::optional<CopiesJob> job;
  agree(rank.mesh.world(), [&] { job = copies_job(); });
  if (!job) return;
  restores_ = job->restores;
  const PeerCopyOptions options{.job = job->job,
                                .attempt = job->attempt,
                                .restores = restores_,
                                .peers = static_cast<int>(rank.config.fault.peer_copies),
                                .memory_free = free_memory()};
  agree(rank.mesh.world(),
        [&] { copies_.emplace(options, rank.mesh, *rank.backend.device, rank.stream, engine.checkpoint_views()); });
}

std::optional<PeerCopies::Restored> RunCopies::restore(std::string& note) {
  if (!copies_ || !restores_) return std::nullopt;
  int64_t newest = -1;
  agree(rank_.mesh.world(), [&] {
    if (rank_.is_rank0()) newest = newest_checkpoint(rank_.config);
  });
  try {
    return copies_->restore(newest, engine_.checkpoint_views());
  } catch (const Error& e) {  // the same on every rank
    if (e.code() != Exit::kDamaged) throw;
    note = fmt::format("{}; the newest checkpoint is used instead", e.what());
    return std::nullopt;
  }
}

bool RunCopies::due(int64_t step) const { return copies_ && step % rank_.config.fault.peer_copy_every == 0; }

void RunCopies::keep(const TrainState& state) {
  if (log_ != nullptr) log_->flush(kFlushLimit);  // a restart does not repeat the steps before
  copies_->keep(state, engine_.checkpoint_views());
}

void RunCopies::discard() {
  if (copies_) copies_->discard();
}

std::string RunCopies::describe() const {
  if (!copies_) return "";
  const int64_t every = rank_.config.fault.peer_copy_every;
  return fmt::format("of the state in memory after every {}, on {}, {} per machine",
                     every == 1 ? "step" : fmt::format("{} steps", every),
                     copies_->peers() == 0   ? "this machine alone: they outlive its ranks, not the machine"
                     : copies_->peers() == 1 ? "the rank's machine and the next"
                                             : fmt::format("the rank's machine and the next {}", copies_->peers()),
                     format_bytes(static_cast<double>(copies_->bytes_per_machine())));
}

}  // namespace gt
