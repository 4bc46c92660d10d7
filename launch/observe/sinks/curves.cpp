#include "launch/observe/sinks/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

void make_folder(const std::string& folder) {
  std::error_code ec;
  std::filesystem::create_directories(folder, ec);
  GT_REQUIRE(!ec, Exit::kIo, folder, ": cannot be made: ", ec.message());
}

// Parses the x of a line "x,value"; -1 if it is not one (the header).
int64_t x_of(std::string_view line) {
  int64_t x;
  return parse_int(line.substr(0, line.find(',')), x) ? x : -1;
}

// CSV file of one curve, ascending in x. Lines that a resumed run or a rollback will write again are truncated
// first, as is an incomplete last line of a killed run.
class CsvFile {
 public:
  // Drops existing lines from x `first` on.
  CsvFile(std::string path, const std::string& value, int64_t first)
      : path_(std::move(path)), head_("step," + value + '\n') {
    std::error_code ec;
    if (std::filesystem::exists(path_, ec)) cut(first);
    open();
  }

  void point(int64_t x, const std::string& value) {
    if (x <= last_) {
      close();
      cut(x);
      open();
    }
    file_->add(fmt::format("{},{}\n", x, value));
    last_ = x;
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

  // Truncates the file at the first line whose x is `first` or more.
  void cut(int64_t first) {
    const std::string text = read_whole_file(path_);
    size_t keep = 0;
    last_ = -1;
    for (size_t end; (end = text.find('\n', keep)) != std::string::npos; keep = end + 1) {
      const int64_t x = x_of(std::string_view(text).substr(keep, end - keep));
      if (x >= first) break;
      last_ = std::max(last_, x);
    }
    std::error_code ec;
    if (keep < text.size()) std::filesystem::resize_file(path_, keep, ec);
    GT_REQUIRE(!ec, Exit::kIo, path_, ": cannot be truncated: ", ec.message());
  }

  const std::string path_, head_;
  std::unique_ptr<LogFile> file_;
  std::vector<std::string> notices_;  // of closed files
  int64_t last_ = -1;                 // x of the last line
};

class CsvCurves : public Curves {
 public:
  CsvCurves(std::string folder, int64_t first, bool fresh) : folder_(std::move(folder)), first_(first), fresh_(fresh) {}

  void point(std::string_view tag, double value, int64_t x, double) override {
    std::unique_ptr<CsvFile>& file = files_[std::string(tag)];
    if (!file) file = open(std::string(tag));
    std::string number = json_number(value);
    std::erase(number, '"');
    file->point(x, number);
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
  const bool fresh_;     // existing files belong to another run
  std::map<std::string, std::unique_ptr<CsvFile>> files_;
};

}  // namespace

TensorBoardFile& TensorBoardCurves::file(double wall) {
  if (!file_) file_ = std::make_unique<TensorBoardFile>(folder_, first_, wall);
  return *file_;
}

void TensorBoardCurves::take_back(int64_t x, double wall) {
  file(wall).start_again(x, wall);
  newest_ = x, step_ = x - 1;
}

void TensorBoardCurves::begin(int64_t x, double wall) {
  if (x <= step_) take_back(x, wall);
  step_ = x;
}

void TensorBoardCurves::point(std::string_view tag, double value, int64_t x, double wall) {
  if (x < newest_) take_back(x, wall);
  newest_ = x;
  if (!file_) make_folder(folder_);
  file(wall).scalar(tag, value, x, wall);
}

std::unique_ptr<Curves> csv_curves(const std::string& folder, int64_t first, bool fresh) {
  return std::make_unique<CsvCurves>(folder, first, fresh);
}

bool CurveSink::begin(const StepRecord& r) {
  curves_->begin(axis_.at(r.step), r.time);
  return r.step % every_ == 0 || r.step == r.total_steps;
}

void CurveSink::draw(const StepRecord& r, int from, int to) {
  for (const StepMetric* m : rows_) {
    if (name_(*m).at < from || name_(*m).at >= to) continue;
    if (const double x = m->of(r); m->known(x)) point(group_ + name_(*m).name, x, r.step, r.time);
  }
}

}  // namespace gt
