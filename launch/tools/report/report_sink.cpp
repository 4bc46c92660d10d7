#include "launch/tools/report/report_sink.h"

#include <exception>

#include "kernels/core/check.h"
#include "launch/tools/report/report.h"

namespace gt {

void ReportSink::flush() {
  if (!std::exchange(due_, false)) return;
  try {
    if (!log_) log_.emplace(dir_);
    log_->read();
    write_report(*log_);
  } catch (const std::exception& e) { notices_.push_back(cat("the report was not written: ", e.what())); }
}

}  // namespace gt
