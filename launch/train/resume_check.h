// Checks whether a run may resume from a checkpoint: everything that must match besides tensors. Read-only.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "data/samples/dataset.h"
#include "launch/config/config.h"

namespace gt {

// `parts`: checkpoint.load; "all" contains each.
bool has_part(const std::vector<std::string>& parts, const std::string& part);

// Throws kUsage, naming every key, if the run differs from the checkpoint's run in settings that affect the loaded
// `parts`, or would read other data. Data are not compared if only weights are loaded.
void require_same_run(const LoadReport& found, const Config&, const Dataset& train,
                      const std::vector<std::string>& parts = {"all"});

// Throws kUsage if the checkpoint has another model family or optimizer: optimizer state cannot be converted, even with
// equal shapes. Called before the load, which could only report missing tensors. The load reports all other errors of
// the checkpoint.
void require_same_kind(const Config&);

// Throws kUsage if the run's folder holds a run and checkpoint.resume is never, unless `force`.
void require_unused_folder(const Config&, bool force);

}  // namespace gt
