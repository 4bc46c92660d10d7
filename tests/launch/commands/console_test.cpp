// Golden text of the console.
#include "launch/observe/sinks/console.h"

#include <cmath>

#include "launch/observe/sinks/progress.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

StepRecord sample() {
  return {.step = 120,
          .total_steps = 2000,
          .seq = 128,
          .loss = 4.21371,
          .grad_norm = 0.8123,
          .lr = 2.4e-4,
          .step_seconds = 0.832,
          .tokens_per_second = 12345,
          .mfu = 0.312};
}

}  // namespace

TEST_CASE("a step is one line") {
  StepRecord r = sample();
  CHECK(step_line(r, 1564) ==
        "step 120/2000  loss 4.2137  gnorm 0.812  lr 2.40e-04  12.3k tok/s  mfu 31.2%  832 ms  eta 26m04s");
  StepRecord before = r;
  r.loss = NAN;
  r.mfu = kUnknown;
  r.loss_scale = 32768;
  r.skipped = 1;
  r.seq = 256;
  r.data_wait = 0.031;
  r.epoch = 1;
  CHECK(step_line(r, NAN, &before) ==
        "step 120/2000  loss nan  gnorm 0.812  lr 2.40e-04  12.3k tok/s  832 ms  eta n/a  scale 32768  "
        "skipped 1  seq 256  "
        "wait 3.1%  epoch 1");
}

TEST_CASE("the last step has no time to go") {
  StepRecord r = sample();
  r.step = r.total_steps;
  CHECK(step_line(r, 0) == "step 2000/2000  loss 4.2137  gnorm 0.812  lr 2.40e-04  12.3k tok/s  mfu 31.2%  832 ms");
}

TEST_CASE("evaluations and saves are one line") {
  CHECK(eval_line({.step = 200, .loss = 4.1021, .seconds = 3.2, .tokens = 204800}) ==
        "eval step 200  loss 4.1021  ppl 60.5  (204,800 tokens, 3.2 s)");
  CHECK(saved_line({.step = 200, .stall_seconds = 0.08, .bytes = 1'900'000'000}) ==
        "saved step-000000200  1.9 GB  stall 0.08 s");
}

TEST_CASE("numbers are short") {
  CHECK(format_duration(0.0321) == "32 ms");
  CHECK(format_duration(12.34) == "12.3 s");
  CHECK(format_duration(59.99) == "1m00s");
  CHECK(format_duration(3600 * 3 + 12 * 60) == "3h12m");
  CHECK(format_duration(86400 * 2 + 3600 * 4) == "2d04h");
  CHECK(format_count(950) == "950");
  CHECK(format_count(999.9) == "1.00k");
  CHECK(format_count(1250000) == "1.25M");
  CHECK(format_bytes(512) == "512 B");
  CHECK(format_bytes(123456789) == "123 MB");
  CHECK(format_thousands(1234567) == "1,234,567");
  CHECK(format_thousands(999) == "999");
}

TEST_CASE("the remaining time is the median step plus remaining evaluations and saves") {
  Eta eta(100, 50, 25);
  CHECK(std::isnan(eta.remaining(0)));
  for (const double s : {1.0, 2.0, 100.0}) eta.step(s);
  eta.eval(10);
  eta.saved(5);
  CHECK(eta.remaining(50) == Approx(50 * 2 + 1 * 10 + 2 * 5));
  for (int i = 0; i < 50; ++i) eta.step(0.5);  // older steps no longer count
  CHECK(eta.remaining(99) == Approx(0.5 + 10 + 5));
}

TEST_CASE("the bar fits the terminal and has no escape codes") {
  CHECK(progress_bar(0.5, 79, "step 50/100", {"loss 4.2137", "eta 26m04s", "12.3k tok/s"}) ==
        "step 50/100  50% [===========>          ]  loss 4.2137  eta 26m04s  12.3k tok/s");
  CHECK(progress_bar(0.5, 40, "step 50/100", {"loss 4.2137", "eta 26m04s"}) ==
        "step 50/100  50% [====>   ]  loss 4.2137");
  CHECK(progress_bar(1, 200, "step 100/100", {}) == "step 100/100 100% [" + std::string(40, '=') + "]");
  for (int width = 0; width < 120; ++width)
    CHECK(progress_bar(0.3, width, "step 3/10", {"loss 1.0000", "eta 1 s"}).size() <= static_cast<size_t>(width));
}

TEST_CASE("blocks align their values") {
  CHECK(block({{"model", "gpt2"}, {"layout", "tp 2\npp 4"}, {"x", ""}}) ==
        "model   gpt2\nlayout  tp 2\n        pp 4\nx\n");
}

TEST_CASE("off a terminal there is one line every log.every steps, and the end block") {
  std::string out;
  ConsoleSink sink({.every = 10, .bar = false, .write = [&](std::string_view s) { out += s; }});
  sink.start({.total_steps = 25, .rows = {{"model", "tiny"}}});
  for (int i = 1; i <= 25; ++i) {
    StepRecord r = sample();
    r.step = i;
    r.total_steps = 25;
    sink.step(r);
  }
  sink.event(create_event(25, "disk is nearly full", true));
  sink.end(
      {.reason = "finished", .exit_code = 0, .rows = {{"steps", "25"}}, .next = {"gpttrain generate --load runs/x"}});
  CHECK(out ==
        "model  tiny\n\n"
        "step 10/25  loss 4.2137  gnorm 0.812  lr 2.40e-04  12.3k tok/s  mfu 31.2%  832 ms  eta 12.5 s\n"
        "step 20/25  loss 4.2137  gnorm 0.812  lr 2.40e-04  12.3k tok/s  mfu 31.2%  832 ms  eta 4.2 s\n"
        "step 25/25  loss 4.2137  gnorm 0.812  lr 2.40e-04  12.3k tok/s  mfu 31.2%  832 ms\n"
        "warning: disk is nearly full\n"
        "\nend    finished (exit code 0)\nsteps  25\nnext   gpttrain generate --load runs/x\n");
}

TEST_CASE("on a terminal lines scroll above the bar") {
  for (const int width : {40, 200}) {
    std::string out;
    ConsoleSink sink({.bar = true, .write = [&](std::string_view s) { out += s; }, .width = [=] { return width; }});
    sink.start({.total_steps = 2000});
    sink.step(sample());
    sink.eval({.step = 120, .loss = 4, .tokens = 10});
    sink.end({.reason = "finished"});
    CHECK(out.find('\x1b') == std::string::npos);
    const size_t erased = out.find("\r" + std::string(20, ' ')), line = out.find("\reval step 120");
    CHECK(erased != std::string::npos);
    CHECK(line != std::string::npos);
    CHECK(erased < line);
    size_t start = 0;  // only the lines above the bar may be wider than the terminal
    for (size_t i = 0; i <= out.size(); ++i)
      if (i == out.size() || out[i] == '\r' || out[i] == '\n') {
        if (out.compare(start, 4, "step") == 0) CHECK(i - start < static_cast<size_t>(width));
        start = i + 1;
      }
  }
}
