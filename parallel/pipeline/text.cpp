// Text form: one line per rank, tokens <virtual stage><act><microbatch>; '#' begins a comment; empty lines are ignored.
#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include "kernels/core/check.h"
#include "parallel/pipeline/pipeline_schedule.h"

namespace gt {
namespace {

constexpr const char* kActs[] = {"F", "B", "I", "W", "F>", "F<", "B>", "B<", "G", "T"};
constexpr const char* kLegal = "F B I W F> F< B> B< (each followed by a microbatch), G T (no microbatch)";

constexpr size_t kMaxRanks = 1024;  // as in parallel.pp

bool per_step(Act a) { return a == Act::kReduceGrads || a == Act::kReduceTied; }

// Position of a token, for error messages.
struct TokenPosition {
  int line, column;  // both are 1-based; column counts tokens
  std::string_view token;
};

template <class... A>
[[noreturn]] void bad(const TokenPosition& at, const A&... why) {
  fail(Exit::kUsage, "schedule text, line ", at.line, ", token ", at.column, " '", at.token, "': ", why...);
}

// Consumes the digits at the front of `s`; returns -1 if there are none.
int take_number(std::string_view& s, const TokenPosition& at, const char* what) {
  if (s.empty() || s[0] < '0' || s[0] > '9') return -1;
  int n = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), n);
  if (error != std::errc{} || n > 32767) bad(at, what, " is too large; at most 32767");
  s.remove_prefix(static_cast<size_t>(end - s.data()));
  return n;
}

Action parse_token(const TokenPosition& at) {
  std::string_view rest = at.token;
  const int stage = take_number(rest, at, "the virtual stage");
  if (stage < 0) bad(at, "a token begins with its virtual stage, e.g. '0", at.token, "'");
  const size_t letters = std::min(rest.find_first_of("0123456789"), rest.size());
  const std::string_view act = rest.substr(0, letters);
  const auto* found = std::find_if(std::begin(kActs), std::end(kActs), [&](const char* n) { return act == n; });
  if (found == std::end(kActs)) {
    // Nearest: the same letters in capitals, else the first letter alone.
    std::string upper(act);
    for (char& c : upper) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    const auto known = [](const std::string& w) {
      return std::find(std::begin(kActs), std::end(kActs), w) != std::end(kActs);
    };
    if (!known(upper)) upper = upper.substr(0, 1);
    const std::string hint =
        known(upper) ? cat("; nearest legal: '", stage, upper, rest.substr(letters), "'") : std::string();
    bad(at, "unknown act '", act, "'; legal acts: ", kLegal, hint);
  }
  rest.remove_prefix(letters);
  Action a{static_cast<Act>(found - std::begin(kActs)), static_cast<int16_t>(stage)};
  const int microbatch = take_number(rest, at, "the microbatch");
  if (!rest.empty()) bad(at, "'", rest, "' follows the microbatch; separate tokens with spaces");
  if (per_step(a.act) && microbatch >= 0) bad(at, act, " belongs to the whole step; nearest legal: '", stage, act, "'");
  if (!per_step(a.act) && microbatch < 0) bad(at, act, " needs a microbatch; e.g. '", stage, act, "0'");
  a.microbatch = static_cast<int16_t>(microbatch);
  return a;
}

}  // namespace

std::string to_string(const Program& p) {
  std::string out;
  for (const Action& a : p) {
    if (!out.empty()) out += ' ';
    out += std::to_string(a.stage) + kActs[static_cast<size_t>(a.act)];
    if (!per_step(a.act)) out += std::to_string(a.microbatch);
  }
  return out;
}

std::string to_string(const PipelineSchedule& s) {
  std::string out;
  for (const Program& p : s.program) out += to_string(p) + '\n';
  return out;
}

PipelineSchedule parse_schedule(const std::string& text) {
  PipelineSchedule s;
  s.name = "text";
  std::vector<std::string> lines;
  std::vector<int> line_of;  // [rank]
  std::istringstream in(text);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    lines.push_back(line);
    line_of.push_back(number);
  }
  GT_REQUIRE(!lines.empty(), Exit::kUsage,
             "schedule text holds no actions; expected one line a rank, e.g. '0F0 0B0 0G'");
  GT_REQUIRE(lines.size() <= kMaxRanks, Exit::kUsage, "schedule text has ", lines.size(),
             " lines of actions, one a rank; at most ", kMaxRanks, " pipeline ranks are possible");
  s.ranks = static_cast<int>(lines.size());
  int last_stage = 0, last_microbatch = 0;
  for (size_t r = 0; r < lines.size(); ++r) {
    std::istringstream words(lines[r]);
    Program& p = s.program.emplace_back();
    int column = 0;
    for (std::string word; words >> word;) {
      const TokenPosition at{line_of[r], ++column, word};
      const Action a = parse_token(at);
      if (s.rank_of(a.stage) != static_cast<int>(r)) {
        const int here = a.stage / s.ranks * s.ranks + static_cast<int>(r);
        bad(at, "this line is rank ", r, " of ", s.ranks, ", stage ", a.stage, " is on rank ", s.rank_of(a.stage),
            " (line ", line_of[static_cast<size_t>(s.rank_of(a.stage))], "); nearest legal stage here: ", here);
      }
      last_stage = std::max(last_stage, int{a.stage});
      last_microbatch = std::max(last_microbatch, int{a.microbatch});
      p.push_back(a);
    }
  }
  s.stages = last_stage + 1;
  s.microbatches = last_microbatch + 1;
  GT_REQUIRE(s.stages % s.ranks == 0, Exit::kUsage, "schedule text names stages 0 to ", last_stage, " on ", s.ranks,
             " ranks (one line each); every rank needs the same number of stages: the next legal number of stages is ",
             (s.stages / s.ranks + 1) * s.ranks);
  // Checked before anything is allocated by these numbers.
  size_t actions = 0;
  for (const Program& p : s.program) actions += p.size();
  const int64_t forwards = int64_t{s.stages} * s.microbatches;
  GT_REQUIRE(static_cast<int64_t>(actions) >= forwards, Exit::kUsage, "schedule text names stages 0 to ", last_stage,
             " and microbatches 0 to ", last_microbatch, ": ", forwards, " forwards are needed, it has ", actions,
             " actions");
  return s;
}

}  // namespace gt
