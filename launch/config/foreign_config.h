// What another trainer's configuration file and names mean here. launch/tools/translate makes them, the command line
// passes them (ConfigSource), and load_config merges them between --config and the flags.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launch/options/options.h"

namespace gt {

struct Config;

// Setting of one of our keys, and its origin in the foreign file.
struct ForeignSetting {
  std::string key;                 // "precision.amp"
  std::vector<std::string> words;  // as in command-line syntax
  std::string origin;              // "ds.json:14:5: fp16.enabled ->", used by error messages
};

struct ForeignConfig {
  std::string trainer;  // "deepspeed": begins its notes
  std::string name;     // file name
  std::vector<ForeignSetting> settings;
  // Keys or sections ("schedule.") fully determined by a block of the file; --config's values for them are dropped.
  std::vector<std::string> replaced;
  std::vector<std::string> left;    // exceptions, left to --config
  std::vector<std::string> report;  // one line each: "optimizer.type Adam -> optim.type adamw (...)"
  // Applies settings that depend on the whole config, such as layer sizes, after the flags. `origin`:
  // LoadedConfig::origin. Empty: none.
  std::function<void(Config&, std::map<std::string, std::string>& origin, std::vector<std::string>& notes)> finish;

  bool determines(const std::string& key) const;  // `replaced` holds it, `left` does not
};

// Reads and translates the file; what is wrong with it goes to `problems`.
using ForeignReader = std::function<ForeignConfig(Problems& problems)>;

// Names that another trainer's file has, for suggestions.
struct ForeignNames {
  std::string (*native)(std::string_view name);  // our key with the same values; "": none
  // What to do about a --config file with such a section; "": the other trainer has none of this name.
  std::string (*advice)(std::string_view section, const std::string& file);
};

}  // namespace gt
