// `gpttrain report`, `compare` and `watch`: arguments and functions, rows of the table in
// launch/commands/subcommands.cpp.
#pragma once
#include <string>
#include <vector>

#include "launch/ranks/command.h"

namespace gt {

struct ReportArgs {
  std::vector<std::string> runs;
  std::string output;
  template <class V>
  void fields(V& v) {
    v("runs", runs, "required", "run folders; several are overlaid; also positional");
    v("output", output, "FILE", "the page; empty: RUN/report.html, of several runs report.html");
  }
};

struct CompareArgs {
  std::vector<std::string> runs;
  std::string html;
  bool json = false;
  template <class V>
  void fields(V& v) {
    v("runs", runs, "required", "two or more run folders; also positional");
    v("html", html, "FILE", "also write the report of all runs, with their curves overlaid");
    v("json", json, "", "print one JSON object");
  }
};

struct WatchArgs {
  std::string run;
  double interval = 2;
  bool once = false;
  template <class V>
  void fields(V& v) {
    v("run", run, "required", "run folder; also positional");
    v("interval", interval, ">0..3600 seconds", "time between two updates");
    v("once", once, "", "show the present state and end");
  }
};

Exit run_report(const Command&);
Exit run_compare(const Command&);
Exit run_watch(const Command&);

}  // namespace gt
