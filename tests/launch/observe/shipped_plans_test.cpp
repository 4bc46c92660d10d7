// Comments of the shipped configs against what the planner computes.
#include <filesystem>
#include <regex>
#include <sstream>

#include "launch/tools/plan/machine_types.h"
#include "launch/tools/plan/run_plan.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("every shipped config has a comment with memory and layout for 1 and 8 and 64 GPUs as plan gives them") {
  const std::regex line(R"(//   (\d+): (does not fit, )?([0-9.]+) (GB|TB) with (--.*))");
  int configs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/configs")) {
    if (entry.path().extension() != ".json") continue;
    INFO(entry.path());
    if (load_config({.file = entry.path().string()}).config.device.kind == DeviceChoice::kCpu) continue;
    ++configs;
    const std::string text = read_file(entry.path().string());
    std::vector<int> counts;
    for (std::sregex_iterator at(text.begin(), text.end(), line), end; at != end; ++at) {
      INFO(at->str());
      std::istringstream words((*at)[5].str());
      ConfigSource load{.file = entry.path().string()};
      for (std::string word; words >> word;) load.flags.push_back(word);
      const RunPlan p =
          plan_run(load_config(load).config, device_type("H100"), machine_model(device_type("H100"), DType::kBF16));
      const ParallelConfig& layout = p.config.parallel;
      counts.push_back(std::stoi((*at)[1]));
      CHECK(layout.tp * layout.pp * layout.dp == counts.back());
      CHECK(p.fits() == !(*at)[2].matched);
      CHECK(p.needed == Approx(std::stod((*at)[3]) * ((*at)[4] == "GB" ? 1e9 : 1e12)).epsilon(0.02).margin(5e7));
    }
    CHECK(counts == std::vector<int>{1, 8, 64});
  }
  CHECK(configs >= 24);
}
