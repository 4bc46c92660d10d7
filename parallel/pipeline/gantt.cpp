#include <algorithm>
#include <cmath>
#include <cstdio>

#include "parallel/pipeline/simulate.h"

namespace gt {
namespace {

char letter(const Action& a) {
  switch (a.act) {
    case Act::kForward: return static_cast<char>('0' + a.microbatch % 10);
    case Act::kBackwardWeight: return static_cast<char>('A' + a.microbatch % 26);
    default: return static_cast<char>('a' + a.microbatch % 26);
  }
}

template <class... A>
std::string format(const char* f, A... args) {
  char text[128];
  std::snprintf(text, sizeof text, f, args...);
  return text;
}

}  // namespace

// One column is the shortest action if that fits the width, else makespan / width; it shows the action at its middle.
std::string gantt(const Report& report, int width) {
  double shortest = report.makespan;
  int microbatches = 0;
  for (const auto& row : report.timeline)
    for (const Span& s : row) {
      if (s.end > s.begin) shortest = std::min(shortest, s.end - s.begin);
      microbatches = std::max(microbatches, s.action.microbatch + 1);
    }
  const double exact = shortest > 0 ? std::ceil(report.makespan / shortest - 1e-9) : 1;
  const int columns = exact <= width ? std::max(1, static_cast<int>(exact)) : std::max(1, width);
  const double unit = exact <= width ? shortest : report.makespan / columns;
  const size_t ranks = report.timeline.size();
  const int label = static_cast<int>(std::to_string(ranks > 0 ? ranks - 1 : 0).size());
  std::string out;
  for (size_t r = 0; r < ranks; ++r) {
    std::string row(static_cast<size_t>(columns), '.');
    const auto draw = [&](const Span& s, char with) {
      const int begin = static_cast<int>(std::ceil(s.begin / unit - 0.5)),
                end = static_cast<int>(std::ceil(s.end / unit - 0.5));
      for (int c = std::max(begin, 0); c < std::min(end, columns); ++c) row[static_cast<size_t>(c)] = with;
    };
    if (r < report.waiting.size())
      for (const Span& s : report.waiting[r]) draw(s, '~');
    double busy = 0;
    for (const Span& s : report.timeline[r]) {
      busy += s.end - s.begin;
      draw(s, letter(s.action));
    }
    const double idle = report.makespan > 0 ? 100 * (1 - busy / report.makespan) : 0;
    out += format("r%-*d ", label, static_cast<int>(r)) + row + format("  %5.1f %%", idle);
    if (r + 1 < ranks) out += '\n';
  }
  out += format("     makespan %g   bubble %.3f", report.makespan, report.bubble);
  const int p = static_cast<int>(ranks);
  if (p > 1 && std::abs(report.bubble - (p - 1.0) / (microbatches + p - 1.0)) < 1e-9) out += " = (p-1)/(m+p-1)";
  return out + '\n';
}

}  // namespace gt
