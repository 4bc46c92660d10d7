// Flags of a Megatron-LM command line by name, whichever table they are in.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launch/options/options.h"
#include "launch/tools/translate/megatron_flags.h"

namespace gt {

class MegatronLine {
 public:
  struct Given {
    const MegatronFlag* flag;
    std::vector<std::string> values;
    std::string name() const { return "--" + std::string(flag->name); }
  };

  // Takes the flags of Megatron's table out of `words`, except for those named in `own`. A flag with fewer arguments
  // than it takes goes to `problems`.
  MegatronLine(std::vector<std::string>& words, std::span<const std::string> own, Problems& problems);

  const std::vector<Given>& given() const { return given_; }
  // Argument of a flag, of either table or one of ours ("model.vocab"); the last occurrence wins. "": absent.
  std::string value(std::string_view name) const;
  std::optional<int64_t> number(std::string_view name) const;  // above 0; nullopt: absent, or none
  bool has(std::string_view name) const;

  // Whether the line is Megatron's: at least four of the flags that each of its scripts has, and no --config.
  bool whole() const;

 private:
  std::vector<std::string>& words_;
  std::vector<Given> given_;
};

}  // namespace gt
