// Whether a run may resume from a checkpoint: what both must have in common beside their tensors. Reads, writes
// nothing.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "data/dataset.h"
#include "launch/config/config.h"

namespace gt {

bool has_part(const std::vector<std::string>& parts, const std::string& part);  // of checkpoint.load; "all" has each

// Throws kUsage, naming every key, when the run would not continue what the checkpoint's run did, as far as `parts` of
// the checkpoint are wanted; and when it would read other data. Weights from elsewhere bring no data.
void require_same_run(const LoadReport& found, const Config&, const Dataset& train,
                      const std::vector<std::string>& parts = {"all"});

// Throws kUsage when the run's model is of another family than the checkpoint's, or its optimizer another: state of one
// optimizer means nothing to another, though it may have the same shapes. Checked before the load, which could only
// report missing tensors; whatever else is wrong with the checkpoint is the load's to report.
void require_same_kind(const Config&);

// Throws kUsage when the run's folder holds a run and checkpoint.resume is never, unless `force`.
void require_unused_folder(const Config&, bool force);

}  // namespace gt
