// Monitors of a DeepSpeed file: TensorBoard and CSV curves over samples.
#include <filesystem>

#include "launch/tools/translate/deepspeed_translation.h"

namespace gt {
namespace {

void monitor(DsTranslation& t, const std::string& block, const char* native) {
  const std::string enabled = block + ".enabled";
  if (!t.flag(enabled, false)) {
    if (t.given(enabled)) t.report(enabled, "off");
    return;
  }
  const std::filesystem::path folder = t.text(block + ".output_path", "");
  const std::string job = t.text(block + ".job_name", "DeepSpeedJobName");
  t.set(enabled, native, (folder.empty() ? std::filesystem::path(".") : folder) / job,
        "tags of DeepSpeed over samples");
}

}  // namespace

void translate_logs(DsTranslation& t) {
  monitor(t, "tensorboard", "log.samples_tensorboard");
  monitor(t, "csv_monitor", "log.samples_csv");
}

}  // namespace gt
