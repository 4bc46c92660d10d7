#include "launch/train/next_commands.h"

#include <fmt/format.h>

#include "kernels/core/text.h"

namespace gt {

std::vector<std::string> next_commands(const Config& c, Exit code, int64_t saved_step) {
  std::vector<std::string> out;
  const bool saved = saved_step >= 0;
  if (code != Exit::kOk)
    out.push_back(saved ? fmt::format("the same command again resumes from step {}", saved_step)
                        : "the same command starts over: there is no checkpoint");
  const std::string run = c.run_dir(), load = shell_word(c.checkpoint.dir.empty() ? run : c.checkpoint.dir);
  out.push_back("tensorboard --logdir " + shell_word(run));
  if (saved && c.model.lora.rank > 0) {
    out.push_back(fmt::format("gpttrain export --load {} --format peft --output FOLDER   (the adapters)", load));
    out.push_back(
        fmt::format("gpttrain export --load {} --output FOLDER   (the model with the adapters merged)", load));
  }
  if (saved && c.data.train.front().path != "mock")  // mock tokens have no meaning
    out.push_back(c.model.predicts_pairs()
                      ? fmt::format("gpttrain export --load {} --output FOLDER", load)
                      : fmt::format("gpttrain generate --load {}{} --prompt \"…\"", load,
                                    c.data.tokenizer.empty() ? " --tokenizer TOKENIZER.model" : ""));
  return out;
}

}  // namespace gt
