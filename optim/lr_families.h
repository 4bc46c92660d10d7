// Factories of the learning-rate schedules, one file each.
#pragma once
#include "optim/lr_schedule.h"

namespace gt {

// constant, linear, cosine, inverse_sqrt, wsd
std::unique_ptr<LrSchedule> make_native(const LrOptions&);
// PyTorch's OneCycleLR
std::unique_ptr<LrSchedule> make_one_cycle_torch(const LrOptions&);
// warmup, warmup_decay, warmup_cosine, one_cycle, lr_range_test
std::unique_ptr<LrSchedule> make_deepspeed(const LrOptions&);

}  // namespace gt
