// Enforces the layering: a folder may include itself and the folders listed here; every third-party header has one
// home.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "kernels/core/check.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

namespace fs = std::filesystem;
using Names = std::set<std::string>;

namespace {

const std::map<std::string, Names> kMayInclude{
    {"kernels/core", {}},
    {"kernels", {"kernels/core"}},
    {"autograd", {"kernels", "kernels/core"}},
    {"parallel", {"autograd", "kernels", "kernels/core"}},
    {"model", {"parallel", "autograd", "kernels/core"}},
    {"optim", {"parallel", "kernels", "kernels/core"}},
    {"data", {"kernels/core"}},
    {"checkpoint", {"parallel", "kernels/core"}},
    {"launch", {"model", "optim", "data", "checkpoint", "parallel", "autograd", "kernels", "kernels/core"}},
};

// Inside parallel/: comm <- mesh <- {tensor, pipeline, zero}; the last three are independent of each other. proof
// observes them; they give it claims.
const std::map<std::string, Names> kInsideParallel{
    {"comm", {"comm"}},
    {"mesh.h", {"comm"}},
    {"mesh.cpp", {"comm", "mesh.h"}},
    {"tensor", {"comm", "mesh.h", "tensor", "proof"}},
    {"pipeline", {"comm", "mesh.h", "pipeline"}},
    {"zero", {"comm", "mesh.h", "zero"}},
    {"proof", {"comm", "mesh.h", "zero", "proof"}},
};

// Inside launch/: a layer may include itself and those before it. First the trainer, then the tools, which the trainer
// does not include, then the command line, which names both.
const std::vector<std::string> kLaunchLayers{"options",      "hosts",         "config",     "ranks",
                                             "engine",       "observe",       "train",      "tools/translate",
                                             "tools/report", "tools/weights", "tools/eval", "tools/generate",
                                             "tools/verify", "tools/bench",   "tools/plan", "commands"};

int launch_layer(const std::string& path) {
  const std::string rest = path.substr(7);
  const size_t end = rest.find('/', rest.rfind("tools/", 0) == 0 ? 6 : 0);
  const auto it = std::find(kLaunchLayers.begin(), kLaunchLayers.end(), rest.substr(0, end));
  return static_cast<int>(it - kLaunchLayers.begin());  // main.cpp: above all layers
}

const std::vector<std::pair<std::string, Names>> kHome{
    {"cuda", {"kernels/cuda", "parallel/comm"}},
    {"cublas", {"kernels/cuda"}},
    {"cudnn", {"kernels/cuda"}},
    {"nccl", {"parallel/comm"}},
    {"mpi.h", {"parallel/comm"}},
    {"hdf5", {"checkpoint"}},
    {"sentencepiece", {"data"}},
    {"pcre2", {"data"}},
    {"utf8proc", {"data"}},
    {"oneapi/dnnl", {"kernels/cpu"}},
    {"dnnl", {"kernels/cpu"}},
    {"omp.h", {"kernels/cpu"}},
    {"nlohmann", {"launch", "checkpoint", "data"}},
    {"CLI/", {"launch"}},
    {"fmt/", {"launch"}},
};

struct Include {
  std::string file, target;
  int line;
  bool angle;
};

std::string folder_of(const std::string& path) {
  if (path.rfind("kernels/core/", 0) == 0) return "kernels/core";
  return path.substr(0, path.find('/'));
}

std::vector<std::string> sources() {
  std::vector<std::string> out;
  for (const auto& [folder, unused] : kMayInclude) {
    if (folder == "kernels/core") continue;  // inside kernels
    for (const auto& e : fs::recursive_directory_iterator(fs::path(gt::source_dir()) / folder))
      if (Names{".h", ".cpp", ".cu", ".cuh"}.count(e.path().extension().string()))
        out.push_back(fs::relative(e.path(), gt::source_dir()).string());
  }
  return out;
}

std::vector<Include> includes_of(const std::string& file) {
  std::vector<Include> out;
  std::ifstream in(fs::path(gt::source_dir()) / file);
  int n = 0;
  for (std::string line; std::getline(in, line);) {
    ++n;
    if (line.rfind("#include ", 0) != 0) continue;
    out.push_back({file, line.substr(10, line.find_first_of("\">", 10) - 10), n, line[9] == '<'});
  }
  return out;
}

// Returns the rule that an include breaks; empty if none.
std::string broken_rule(const Include& i) {
  const std::string from = folder_of(i.file), to = folder_of(i.target);
  if (!i.angle) {
    if (to == "tests") return "nothing includes tests/";
    if (to != from && !kMayInclude.at(from).count(to)) return from + " may not include " + to;
    if (from == "model" && i.target == "kernels/ops.h") return "a model cannot name a backend";
    if (from == "parallel" && to == "parallel") {
      const auto part = [](const std::string& p) {
        const std::string rest = p.substr(9);
        return rest.substr(0, rest.find('/'));
      };
      if (!kInsideParallel.at(part(i.file)).count(part(i.target)))
        return part(i.file) + " may not include " + part(i.target);
    }
    if (from == "launch" && to == "launch" && i.target != "launch/git_hash.h" &&
        launch_layer(i.target) > launch_layer(i.file))
      return i.file + " may not include the higher layer of " + i.target;
    return "";
  }
  for (const auto& [prefix, homes] : kHome)
    if (i.target.rfind(prefix, 0) == 0) {
      for (const std::string& h : homes)
        if (i.file.rfind(h, 0) == 0) return "";
      return "<" + i.target + "> is not at home here";
    }
  return "";
}

}  // namespace

TEST_CASE("includes follow the layering") {
  int checked = 0;
  for (const std::string& file : sources())
    for (const Include& i : includes_of(file)) {
      ++checked;
      INFO(i.file << ':' << i.line << " includes " << i.target);
      CHECK(broken_rule(i) == "");
    }
  CHECK(checked > 300);
}

TEST_CASE("upward includes are detected") {
  CHECK(broken_rule({"autograd/tape.h", "parallel/mesh.h", 1, false}) != "");
  CHECK(broken_rule({"data/samples/loader.h", "nccl.h", 1, true}) != "");
  CHECK(broken_rule({"model/model_stage.h", "kernels/ops.h", 1, false}) != "");
  CHECK(broken_rule({"parallel/zero/param_store.h", "parallel/pipeline/pipeline_schedule.h", 1, false}) != "");
  CHECK(broken_rule({"launch/engine/engine.h", "tests/support/test.h", 1, false}) != "");
  CHECK(broken_rule({"launch/engine/engine.h", "model/model_stage.h", 1, false}) == "");
  CHECK(broken_rule({"launch/config/config_check.cpp", "launch/observe/trace/trace.h", 1, false}) != "");
  CHECK(broken_rule({"launch/ranks/ranks.h", "launch/commands/cli.h", 1, false}) != "");
  CHECK(broken_rule({"launch/engine/engine.h", "launch/train/trainer.h", 1, false}) != "");
  CHECK(broken_rule({"launch/train/trainer.h", "launch/engine/engine.h", 1, false}) == "");
  CHECK(broken_rule({"launch/options/version.cpp", "launch/main.cpp", 1, false}) != "");
}

TEST_CASE("an include of a tool by the trainer, or of the command line by a tool, is detected") {
  for (const char* layer : {"options", "hosts", "config", "ranks", "engine", "observe", "train"})
    for (const char* tool : {"translate/deepspeed.h", "report/report_sink.h", "weights/import.h", "eval/task_report.h",
                             "generate/decoder.h", "verify/layouts.h", "bench/op_times.h", "plan/run_plan.h"}) {
      const std::string file = gt::cat("launch/", layer, "/below.cpp"), target = gt::cat("launch/tools/", tool);
      INFO(file << " and " << target);
      CHECK(broken_rule({file, target, 1, false}) != "");
      CHECK(broken_rule({target, file, 1, false}) == "");
      CHECK(broken_rule({target, "launch/commands/cli.h", 1, false}) != "");
      CHECK(broken_rule({"launch/commands/cli.cpp", target, 1, false}) == "");
    }
  CHECK(broken_rule({"launch/tools/plan/search.cpp", "launch/tools/verify/layouts.h", 1, false}) == "");
  CHECK(broken_rule({"launch/tools/verify/layouts.cpp", "launch/tools/plan/search.h", 1, false}) != "");
}

TEST_CASE("every folder of launch/ is a layer") {
  for (const char* above : {"launch", "launch/tools"})
    for (const auto& e : fs::directory_iterator(fs::path(gt::source_dir()) / above)) {
      if (!e.is_directory() || e.path().filename() == "tools") continue;
      INFO(e.path());
      CHECK(launch_layer(gt::cat(above, "/", e.path().filename().string(), "/")) <
            static_cast<int>(kLaunchLayers.size()));
    }
}
