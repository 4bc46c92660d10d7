// Pipeline schedules in text files: file:PATH in parallel.schedule and `gpttrain schedule`. parse_schedule defines the
// syntax; the simulator decides validity.
#pragma once
#include <string>

#include "parallel/pipeline/pipeline_schedule.h"

namespace gt {

bool is_schedule_file(const std::string& name);  // "file:PATH"

// Reads the file named by "file:PATH", fills in omitted actions (complete_schedule) and validates it with the
// simulator. Throws kUsage with the path if it is unreadable, larger than 16 MiB, malformed or rejected by the
// simulator.
PipelineSchedule read_schedule_file(const std::string& name, bool tied);

// Throws kUsage unless a schedule from a file is a training schedule for p ranks, v chunks a rank, m microbatches and
// tied or untied weights. The message lists every mismatch and the values that would fit.
void require_fits(const PipelineSchedule&, int64_t p, int64_t v, int64_t m, bool tied);

}  // namespace gt
