// Schedule generators: the compute actions of every rank, in order. Independent of communication.
#include <algorithm>

#include "kernels/core/check.h"
#include "parallel/pipeline/pipeline_schedule.h"

namespace gt {
namespace {

constexpr int kMost = 32767;  // stages, microbatches: an Action holds them in 16 bits

PipelineSchedule empty(const char* name, int ranks, int chunks, int microbatches) {
  GT_REQUIRE(ranks >= 1 && chunks >= 1 && microbatches >= 1, Exit::kUsage, "a ", name, " schedule needs pp ", ranks,
             ", vpp ", chunks, " and microbatches ", microbatches, " to be at least 1");
  GT_REQUIRE(int64_t{ranks} * chunks <= kMost && microbatches <= kMost, Exit::kUsage, "a ", name, " schedule with pp ",
             ranks, " * vpp ", chunks, " stages and ", microbatches, " microbatches: at most ", kMost,
             " of each are possible");
  return {name, ranks, ranks * chunks, microbatches, std::vector<Program>(static_cast<size_t>(ranks))};
}

struct Step {
  int chunk, microbatch;
};

// Order in which a rank runs (chunk, microbatch): groups of `ranks` microbatches, each group through every chunk. The
// remainder is added to the first group: a smaller last group would deadlock with the usual warm-up.
struct Walk {
  int first_group = 0;
  std::vector<Step> steps;
};

Walk walk(int ranks, int chunks, int microbatches) {
  Walk w;
  w.first_group = microbatches <= ranks ? microbatches : ranks + microbatches % ranks;
  w.steps.reserve(static_cast<size_t>(chunks) * static_cast<size_t>(microbatches));
  for (int begin = 0, size = w.first_group; begin < microbatches; begin += size, size = ranks)
    for (int c = 0; c < chunks; ++c)
      for (int k = begin; k < begin + size; ++k) w.steps.push_back({c, k});
  return w;
}

// Appends actions to the program of one rank.
struct Writer {
  Program& out;
  void operator()(Act act, int stage, int microbatch) {
    out.push_back({act, static_cast<int16_t>(stage), static_cast<int16_t>(microbatch)});
  }
};

}  // namespace

PipelineSchedule gpipe(int p, int m) {
  PipelineSchedule s = empty("gpipe", p, 1, m);
  for (int r = 0; r < p; ++r) {
    Writer put{s.program[static_cast<size_t>(r)]};
    for (int k = 0; k < m; ++k) put(Act::kForward, r, k);
    for (int k = 0; k < m; ++k) put(Act::kBackward, r, k);
  }
  return s;
}

// PipeDream-flush (Narayanan et al. 2021): warm-up forwards, then one forward and one backward alternately.
PipelineSchedule one_f_one_b(int p, int m, int extra) {
  PipelineSchedule s = empty("1f1b", p, 1, m);
  GT_REQUIRE(extra >= 0, Exit::kUsage, extra, " extra microbatches in flight");
  for (int r = 0; r < p; ++r) {
    Writer put{s.program[static_cast<size_t>(r)]};
    int f = 0;
    const int64_t warm = in_flight_1f1b(p, r, m, extra) - 1;
    while (f < warm) put(Act::kForward, r, f++);
    for (int b = 0; b < m; ++b) {
      if (f < m) put(Act::kForward, r, f++);
      put(Act::kBackward, r, b);
    }
  }
  return s;
}

// Interleaved 1F1B (Narayanan et al. 2021, section 2.2.2), for any m by the group rule of walk().
PipelineSchedule interleaved(int p, int v, int m) {
  PipelineSchedule s = empty("interleaved", p, v, m);
  const Walk w = walk(p, v, m);
  const size_t total = w.steps.size();
  for (int r = 0; r < p; ++r) {
    Writer put{s.program[static_cast<size_t>(r)]};
    size_t f = 0;
    const auto forward = [&] {
      put(Act::kForward, w.steps[f].chunk * p + r, w.steps[f].microbatch);
      ++f;
    };
    const size_t warm = std::min(static_cast<size_t>(2 * (p - 1 - r) + (v - 1) * w.first_group), total);
    while (f < warm) forward();
    for (size_t b = 0; b < total; ++b) {
      if (f < total) forward();
      put(Act::kBackward, (v - 1 - w.steps[b].chunk) * p + r, w.steps[b].microbatch);
    }
  }
  return s;
}

// ZB-H1 (Qi et al. 2023): weight gradients fill the bubbles; activations of at most p microbatches, kept until W.
PipelineSchedule zb_h1(int p, int m) {
  PipelineSchedule s = empty("zb-h1", p, 1, m);
  for (int r = 0; r < p; ++r) {
    Writer put{s.program[static_cast<size_t>(r)]};
    const int warm = std::min(p - 1 - r, m);
    int f = 0, i = 0, w = 0;
    while (f < warm) put(Act::kForward, r, f++);
    for (int n = warm; n < m; ++n) {
      put(Act::kForward, r, f++);
      put(Act::kBackwardInput, r, i++);
      if (i - w > r) put(Act::kBackwardWeight, r, w++);
    }
    while (i < m) {
      put(Act::kBackwardInput, r, i++);
      put(Act::kBackwardWeight, r, w++);
    }
    while (w < m) put(Act::kBackwardWeight, r, w++);
  }
  return s;
}

PipelineSchedule forward_only(int p, int v, int m) {
  PipelineSchedule s = empty("forward", p, v, m);
  const Walk w = walk(p, v, m);
  for (int r = 0; r < p; ++r) {
    Writer put{s.program[static_cast<size_t>(r)]};
    for (const Step& t : w.steps) put(Act::kForward, t.chunk * p + r, t.microbatch);
  }
  return s;
}

std::vector<std::string> schedule_names() { return {"gpipe", "1f1b", "interleaved", "zb-h1", "forward"}; }

PipelineSchedule make_schedule(const std::string& name, int p, int v, int m, bool tied, int extra) {
  const bool chunked = name == "interleaved" || name == "forward";
  std::string known;
  for (const std::string& n : schedule_names()) known += (known.empty() ? "" : ", ") + n;
  PipelineSchedule s;
  if (name == "interleaved")
    s = interleaved(p, v, m);
  else if (name == "forward")
    s = forward_only(p, v, m);
  else if (name == "gpipe")
    s = gpipe(p, m);
  else if (name == "1f1b")
    s = one_f_one_b(p, m, extra);
  else if (name == "zb-h1")
    s = zb_h1(p, m);
  else
    fail(Exit::kUsage, "unknown pipeline schedule '", name, "'; known: ", known, ", or file:PATH for a text schedule");
  GT_REQUIRE(chunked || v == 1, Exit::kUsage, "schedule ", name, " has one model chunk a rank, vpp is ", v,
             "; set vpp to 1 or the schedule to interleaved");
  GT_REQUIRE(extra == 0 || name == "1f1b", Exit::kUsage, "schedule ", name,
             " has a fixed number of microbatches in flight; set extra_in_flight to 0 or the schedule to 1f1b");
  add_reduce_grads(s, tied);
  add_send_recv(s);
  return s;
}

}  // namespace gt
