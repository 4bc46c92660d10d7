// Fits the step model to measured steps: its constants, then the time of the blocks that were measured. Kernels and
// collectives of one shape deviate from any smooth model by up to 20 %, in the same way in every layout that has them.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "launch/tools/plan/rows.h"

namespace gt {

using MachineProfiles = std::map<std::string, MachineModel>;

// Returns `machine` with the fitted constants and blocks of `profile`.
MachineModel calibrated(const MachineModel& machine, const MachineModel& profile);

// Fits a model for every profile of the graded rows with times. Deterministic. The constants minimize mean
// |ln(predicted / printed)| + 0.3 x its root mean square + 0.003 (1 + (23 / rows)^2) x the mean square of (ln(constant
// / prior) / sigma), by a seeded random walk. The prior of a profile is that of its device, shifted by the mean fit of
// the other profiles of this device. A block shape of n rows gets exp(sum ln(ratio) / (n + 1/2)) of their ratios of
// measured to modelled block time.
MachineProfiles calibrate_profiles(const std::vector<PlanRow>& rows);

// Returns cross-validation errors: each row is predicted by a fit without it. `folds` folds per profile; rows of one
// model and layout share a fold. In the order of `rows`; NaN for rows without a time or not graded.
std::vector<double> unseen_errors(const std::vector<PlanRow>& rows, int folds);

// JSON files of profiles. Errors are kUsage, naming file, profile and constant.
void write_profiles(const MachineProfiles&, const std::string& path);
MachineProfiles read_profiles(const std::string& path);

}  // namespace gt
