#include "launch/observe/sinks/samples_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "launch/observe/sinks/points.h"
#include "launch/observe/sinks/tensorboard.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

void make_folder(const std::string& folder) {
  std::error_code ec;
  std::filesystem::create_directories(folder, ec);
  GT_REQUIRE(!ec, Exit::kIo, folder, ": cannot be made: ", ec.message());
}

class TensorBoardCurves : public Curves {
 public:
  TensorBoardCurves(const std::string& folder, const SampleAxis& axis) : folder_(folder), first_(axis.samples + 1) {}
  const char* name() const override { return "log.samples_tensorboard"; }
  void point(const std::string& tag, double value, int64_t samples, double wall) override {
    if (!file_) {
      make_folder(folder_);
      file_ = std::make_unique<TensorBoardFile>(folder_, first_, wall);
    }
    if (samples < newest_) file_->start_again(samples, wall);
    newest_ = samples;
    file_->scalar(tag, value, samples, wall);
  }
  void flush() override {
    if (file_) file_->flush();
  }
  std::vector<std::string> notices() override { return file_ ? file_->notices() : std::vector<std::string>(); }
  std::string unwritten() const override { return file_ ? file_->unwritten() : ""; }

 private:
  const std::string folder_;
  const int64_t first_;
  int64_t newest_ = -1;  // samples of the last point
  std::unique_ptr<TensorBoardFile> file_;
};

// Parses the samples of a line "samples,value"; -1 if it is not one (the header).
int64_t samples_of(std::string_view line) {
  int64_t x;
  return parse_int(line.substr(0, line.find(',')), x) ? x : -1;
}

// CSV file of one curve, ascending in samples. Lines that a resumed run or a rollback will write again are truncated
// first, as is an incomplete last line of a killed run.
class CsvFile {
 public:
  // Drops existing lines from `first` samples on.
  CsvFile(std::string path, const std::string& value, int64_t first)
      : path_(std::move(path)), head_("step," + value + '\n') {
    std::error_code ec;
    if (std::filesystem::exists(path_, ec)) cut(first);
    open();
  }

  void point(int64_t samples, const std::string& value) {
    if (samples <= last_) {
      close();
      cut(samples);
      open();
    }
    file_->add(fmt::format("{},{}\n", samples, value));
    last_ = samples;
  }

  void flush() { file_->flush(); }
  std::string unwritten() const { return file_->unwritten(); }
  void take_notices(std::vector<std::string>& out) {
    for (std::string& text : file_->notices()) out.push_back(std::move(text));
    out.insert(out.end(), notices_.begin(), notices_.end());
    notices_.clear();
  }

 private:
  void open() { file_ = std::make_unique<LogFile>(path_, head_, LogFile::Form::kLines); }
  void close() {
    file_->flush();
    notices_ = file_->notices();
    file_.reset();
  }

  // Truncates the file at the first line with `first` samples or more.
  void cut(int64_t first) {
    const std::string text = read_whole_file(path_);
    size_t keep = 0;
    last_ = -1;
    for (size_t end; (end = text.find('\n', keep)) != std::string::npos; keep = end + 1) {
      const int64_t samples = samples_of(std::string_view(text).substr(keep, end - keep));
      if (samples >= first) break;
      last_ = std::max(last_, samples);
    }
    std::error_code ec;
    if (keep < text.size()) std::filesystem::resize_file(path_, keep, ec);
    GT_REQUIRE(!ec, Exit::kIo, path_, ": cannot be truncated: ", ec.message());
  }

  const std::string path_, head_;
  std::unique_ptr<LogFile> file_;
  std::vector<std::string> notices_;  // of closed files
  int64_t last_ = -1;                 // samples of the last line
};

class CsvCurves : public Curves {
 public:
  CsvCurves(std::string folder, const SampleAxis& axis)
      : folder_(std::move(folder)), first_(axis.samples + 1), fresh_(axis.step == 0) {}
  const char* name() const override { return "log.samples_csv"; }

  void point(const std::string& tag, double value, int64_t samples, double) override {
    std::unique_ptr<CsvFile>& file = files_[tag];
    if (!file) file = open(tag);
    std::string number = json_number(value);
    std::erase(number, '"');
    file->point(samples, number);
  }

  void flush() override {
    for (auto& [tag, file] : files_) file->flush();
  }
  std::vector<std::string> notices() override {
    std::vector<std::string> out;
    for (auto& [tag, file] : files_) file->take_notices(out);
    return out;
  }
  std::string unwritten() const override {
    for (const auto& [tag, file] : files_)
      if (std::string what = file->unwritten(); !what.empty()) return what;  // the other files are on the same disk
    return "";
  }

 private:
  std::unique_ptr<CsvFile> open(const std::string& tag) const {
    make_folder(folder_);
    std::string name = tag;
    for (char& c : name)
      if (c == '/' || c == ' ') c = '_';
    const std::string path = folder_ + "/" + name + ".csv";
    std::error_code ec;  // ignored: nothing to rename
    if (fresh_) std::filesystem::rename(path, path + ".old", ec);
    return std::make_unique<CsvFile>(path, tag.substr(tag.rfind('/') + 1), first_);
  }

  const std::string folder_;
  const int64_t first_;  // lines from here on are dropped
  const bool fresh_;     // begins at step 1: existing files belong to another run
  std::map<std::string, std::unique_ptr<CsvFile>> files_;
};

}  // namespace

std::unique_ptr<Curves> tensorboard_curves(const std::string& folder, const SampleAxis& axis) {
  return std::make_unique<TensorBoardCurves>(folder, axis);
}

std::unique_ptr<Curves> csv_curves(const std::string& folder, const SampleAxis& axis) {
  return std::make_unique<CsvCurves>(folder, axis);
}

void SamplesSink::step(const StepRecord& r) {
  const std::string group = "Train/Samples/";
  const Points p{
      [&](std::string_view tag, double y) { curves_->point(group + std::string(tag), y, axis_.at(r.step), r.time); }};
  p.always("train_loss", r.loss);
  p.always("lr", r.lr);
  p.known("loss_scale", r.loss_scale);
  p.always("grad_norm", r.grad_norm);
  p.known("tokens_per_sec", r.tokens_per_second);
  p.known("mfu", r.mfu);
  p.always("skipped_steps", static_cast<double>(r.skipped));
  if (times_) {
    const Timers& t = r.longest;
    const double inner = t[kBackwardTime] + t[kInputGradTime] + t[kWeightGradTime];
    if (t[kMicrobatchTime] == 0) {  // otherwise the end of the forward is unknown
      p.always("elapsed_time_ms_forward", 1e3 * t[kForwardTime]);
      p.always("elapsed_time_ms_backward", 1e3 * (inner + t[kReduceTime]));
      p.always("elapsed_time_ms_backward_inner", 1e3 * inner);
    }
    p.always("elapsed_time_ms_backward_allreduce", 1e3 * t[kReduceTime]);
    p.always("elapsed_time_ms_step", 1e3 * (t[kNormsTime] + t[kOptimizerTime] + t[kGatherTime]));
  }
  curves_->flush();
}

void SamplesSink::eval(const EvalRecord& r) {
  curves_->point("Train/Samples/eval_loss", r.loss, axis_.at(r.step), r.time);
}

// Writes trust ratios only: DeepSpeed's monitors have no other scalars.
void SamplesSink::scalar(const ScalarRecord& r) {
  constexpr std::string_view kOurs = "train/lamb_coeff/";
  const std::string_view tag = r.tag.data();
  if (tag.substr(0, kOurs.size()) == kOurs)
    curves_->point("Train/Lamb/coeff_" + std::string(tag.substr(kOurs.size())), r.value, axis_.at(r.step), r.time);
}

}  // namespace gt
