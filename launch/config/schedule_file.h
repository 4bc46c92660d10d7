// Pipeline schedules from text files: what parallel.schedule and `gpttrain schedule` mean by file:PATH. Knows the text
// form only through parse_schedule; what a schedule must be, only through the simulator.
#pragma once
#include <string>

#include "parallel/pipeline/schedule.h"

namespace gt {

bool is_schedule_file(const std::string& name);  // "file:PATH"

// Reads the file of `name` ("file:PATH"), adds what it leaves out (complete_schedule) and has the simulator accept it.
// Throws kUsage, naming the path: not readable, more than 16 MiB, not of the text form, refused by the simulator.
Schedule read_schedule_file(const std::string& name, bool tied);

// Throws kUsage unless the schedule, read from a file, trains and is for p ranks, v chunks a rank, m microbatches and
// tied or untied weights; the message names all that differ and the values that would fit.
void require_fits(const Schedule&, int64_t p, int64_t v, int64_t m, bool tied);

}  // namespace gt
