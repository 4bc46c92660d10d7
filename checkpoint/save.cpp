#include "checkpoint/save.h"

#include <chrono>

#include "checkpoint/store/steps.h"
#include "checkpoint/world.h"

namespace gt {

SaveReport save_checkpoint(Vfs& vfs, const std::string& dir, const TrainState& state, std::span<const ShardView> views,
                           const std::vector<AuxFile>& aux, const SaveOptions& options, const Mesh& mesh,
                           const DeviceApi& api, Stream stream, const FetchTensor& fetch) {
  const auto begin = std::chrono::steady_clock::now();
  SaveAttempt save(vfs, dir, state, options, mesh, api, stream);
  save.set_fetch(fetch);
  try {
    save.plan(views);
    save.begin();
    all_or_none(mesh, [&] {
      api.synchronize(stream);
      save.write();
    });
    save.gather_hashes();
    all_or_none(mesh, [&] {
      if (mesh.rank() == 0) save.commit(aux);
    });
  } catch (const Error& e) {
    if (mesh.rank() == 0) save.abandon();  // every rank has closed its files: all_or_none synchronised them
    throw save_error(state.step, e);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  SaveReport report;
  if (mesh.rank() == 0) report = save.after();
  report.path = dir + "/" + step_name(state.step);
  report.bytes = std::stoll(broadcast_bytes(mesh.world(), std::to_string(report.bytes), 0));
  report.seconds = seconds;
  return report;
}

SaveReport save_checkpoint(const std::string& dir, const TrainState& state, std::span<const ShardView> views,
                           const std::vector<AuxFile>& aux, const SaveOptions& options, const Mesh& mesh,
                           const DeviceApi& api, Stream stream) {
  Vfs vfs;
  return save_checkpoint(vfs, dir, state, views, aux, options, mesh, api, stream);
}

SaveReport save_streamed(const std::string& dir, const TrainState& state, std::span<const ShardView> tensors,
                         const FetchTensor& fetch, const std::vector<AuxFile>& aux, const SaveOptions& options,
                         const Mesh& mesh, const DeviceApi& host) {
  Vfs vfs;
  return save_checkpoint(vfs, dir, state, tensors, aux, options, mesh, host, {}, fetch);
}

// A failed readback is an I/O failure of this attempt, not a damaged checkpoint.
Error save_error(int64_t step, const Error& e) {
  return Error(cat("checkpoint of step ", step, ": ", e.what()), e.code() == Exit::kDamaged ? Exit::kIo : e.code());
}

}  // namespace gt
