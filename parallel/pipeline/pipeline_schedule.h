// A pipeline schedule as data: for every pipeline rank, the actions of one optimizer step. Generators emit compute
// actions only (F, B or I + W); passes add messages and reductions; a simulator validates; the executor runs. Text
// form, one line per rank: "0F0 0F>0 0F1 0F>1 0B<0 0B0 0G". Token = virtual stage, act, microbatch.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace gt {

enum class Act : uint8_t {  // with its letters in the text form
  kForward,                 // F
  kBackward,                // B
  kBackwardInput,           // I
  kBackwardWeight,          // W
  kSendForward,             // F>
  kRecvForward,             // F<
  kSendBackward,            // B>
  kRecvBackward,            // B<
  kReduceGrads,             // G
  kReduceTied,              // T
};

struct Action {
  Act act;
  int16_t stage;            // virtual stage, 0 .. stages-1; stage k is on rank k mod p
  int16_t microbatch = -1;  // -1 where it does not apply
  friend bool operator==(Action, Action) = default;
};

using Program = std::vector<Action>;  // one rank, one step

struct PipelineSchedule {
  std::string name;
  int ranks = 1, stages = 1, microbatches = 1;
  std::vector<Program> program;  // [rank]
  int rank_of(int stage) const { return stage % ranks; }
};

// Generators; compute actions only. p pipeline ranks, v model chunks per rank, m microbatches; all >= 1, any m is
// legal.
PipelineSchedule gpipe(int p, int m);
// `extra`: microbatches in flight for each boundary between stages beyond plain 1F1B's one. With latency L between
// stages, no rank idles in the steady state if (1 + extra) (F + B) >= F + B + 2 L.
PipelineSchedule one_f_one_b(int p, int m, int extra = 0);
// Microbatches whose activations rank r of one_f_one_b() holds at its peak.
constexpr int64_t in_flight_1f1b(int64_t p, int64_t r, int64_t m, int64_t extra) {
  return std::min((p - 1 - r) * (1 + extra) + 1, m);
}
PipelineSchedule interleaved(int p, int v, int m);
PipelineSchedule zb_h1(int p, int m);
PipelineSchedule forward_only(int p, int v, int m);  // evaluation

// Returns a schedule by name ("gpipe", "1f1b", "interleaved", "zb-h1", "forward"), with sends, receives and reductions.
// `tied`: first and last stage share weights (adds T). `extra`: of 1f1b alone. Throws kUsage on an unknown name,
// listing the known ones.
PipelineSchedule make_schedule(const std::string& name, int p, int v, int m, bool tied = false, int extra = 0);
std::vector<std::string> schedule_names();

// Inserts each send after the action that produces its tensor, and the matching receive on the peer.
void add_send_recv(PipelineSchedule&);
// Inserts G after the last B or W of each stage and, if `tied`, T at the end of the first and the last stage.
void add_reduce_grads(PipelineSchedule&, bool tied);

// Completes a hand-written schedule, for which compute actions are enough. Adds G if there is none, T if `tied` and
// there is none, sends and receives if there are none. A complete schedule is unchanged. Throws kUsage on T without G.
void complete_schedule(PipelineSchedule&, bool tied);

std::string to_string(const Program&);
std::string to_string(const PipelineSchedule&);            // one line per rank
PipelineSchedule parse_schedule(const std::string& text);  // inverse of to_string(); errors name line and token

}  // namespace gt
