#include "launch/logs/samples_sink.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "kernels/core/check.h"
#include "launch/config/json_text.h"
#include "launch/logs/points.h"
#include "launch/logs/tensorboard.h"

namespace gt {
namespace {

void make_folder(const std::string& folder) {
  std::error_code ec;
  std::filesystem::create_directories(folder, ec);
  GT_REQUIRE(!ec, Exit::kIo, folder, ": cannot be made: ", ec.message());
}

class TensorBoardCurves : public Curves {
 public:
  TensorBoardCurves(const std::string& folder, const SampleAxis& axis)
      : folder_(folder), first_(axis.at(axis.step + 1)) {}
  const char* name() const override { return "log.samples_tensorboard"; }
  void point(const std::string& tag, double value, int64_t samples, double wall) override {
    if (!file_) {
      make_folder(folder_);
      file_ = std::make_unique<TensorBoardFile>(folder_, first_, wall);
    }
    file_->scalar(tag, value, samples, wall);
  }
  void flush() override {
    if (file_) file_->flush();
  }

 private:
  const std::string folder_;
  const int64_t first_;
  std::unique_ptr<TensorBoardFile> file_;
};

class CsvCurves : public Curves {
 public:
  explicit CsvCurves(std::string folder) : folder_(std::move(folder)) {}
  const char* name() const override { return "log.samples_csv"; }

  void point(const std::string& tag, double value, int64_t samples, double) override {
    auto& [file, path] = files_[tag];
    if (path.empty()) open(tag, file, path);
    std::string number = json_number(value);
    std::erase(number, '"');
    file << samples << ',' << number << '\n';
  }

  void flush() override {
    for (auto& [tag, open] : files_) {
      open.file.flush();
      GT_REQUIRE(open.file.good(), Exit::kIo, open.path, ": cannot be written: ", std::strerror(errno));
    }
  }

 private:
  struct OpenFile {
    std::ofstream file;
    std::string path;
  };

  void open(const std::string& tag, std::ofstream& file, std::string& path) {
    make_folder(folder_);
    std::string name = tag;
    for (char& c : name)
      if (c == '/' || c == ' ') c = '_';
    path = folder_ + "/" + name + ".csv";
    std::error_code ec;
    const bool empty = !std::filesystem::exists(path, ec) || std::filesystem::file_size(path, ec) == 0;
    file.open(path, std::ios::app);
    if (empty) file << "step," << tag.substr(tag.rfind('/') + 1) << '\n';
  }

  const std::string folder_;
  std::map<std::string, OpenFile> files_;
};

}  // namespace

std::unique_ptr<Curves> tensorboard_curves(const std::string& folder, const SampleAxis& axis) {
  return std::make_unique<TensorBoardCurves>(folder, axis);
}

std::unique_ptr<Curves> csv_curves(const std::string& folder) { return std::make_unique<CsvCurves>(folder); }

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
    p.always("elapsed_time_ms_forward", 1e3 * t[kForwardTime]);
    p.always("elapsed_time_ms_backward", 1e3 * (inner + t[kReduceTime]));
    p.always("elapsed_time_ms_backward_inner", 1e3 * inner);
    p.always("elapsed_time_ms_backward_allreduce", 1e3 * t[kReduceTime]);
    p.always("elapsed_time_ms_step", 1e3 * (t[kNormsTime] + t[kOptimizerTime] + t[kGatherTime]));
  }
  curves_->flush();
}

void SamplesSink::eval(const EvalRecord& r) {
  curves_->point("Train/Samples/eval_loss", r.loss, axis_.at(r.step), r.time);
}

// Of the scalars of a run DeepSpeed has the trust ratios.
void SamplesSink::scalar(const ScalarRecord& r) {
  constexpr std::string_view kOurs = "train/lamb_coeff/";
  const std::string_view tag = r.tag.data();
  if (tag.substr(0, kOurs.size()) == kOurs)
    curves_->point("Train/Lamb/coeff_" + std::string(tag.substr(kOurs.size())), r.value, axis_.at(r.step), r.time);
}

}  // namespace gt
