#include "launch/train/range_test.h"

#include <fmt/format.h>

#include <limits>

#include "launch/ranks/run_file.h"

namespace gt {

void RangeTest::add(const StepResult& r) {
  points_.push_back({r.lr, r.skipped ? std::numeric_limits<double>::infinity() : r.loss});
}

Rows RangeTest::report(const std::string& dir) const {
  std::string csv = "step,lr,loss\n", written = dir + "/lr_range.csv";
  for (size_t i = 0; i < points_.size(); ++i) csv += fmt::format("{},{},{}\n", i + 1, points_[i].lr, points_[i].loss);
  try {
    write_run_file(written, csv);
  } catch (const Error& e) { written = e.what(); }
  Rows rows{{"range test", written}};
  const RangeTestResult v = evaluate_range_test(points_);
  if (!v.enough) {
    rows.push_back({"peak", "none: the loss never fell, or there were fewer than 10 steps"});
    return rows;
  }
  const std::string largest =
      v.diverged ? fmt::format("{:.3g}: there the smoothed loss was lowest ({:.4f})", v.largest_stable, v.lowest_loss)
                 : fmt::format("at least {:.3g}: the loss had not risen at the end; use a larger --optim.lr",
                               v.largest_stable);
  rows.push_back({"largest lr", largest});
  rows.push_back({"peak", fmt::format("suggested: --optim.lr {:.2g}, half of that", v.suggested_peak)});
  return rows;
}

}  // namespace gt
