// The rules of the sections optim and schedule: defaults that follow from the type, what belongs to which type, and the
// options of optimizer and schedule that the config stands for.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "optim/optimizer.h"

namespace gt {

OptimizerOptions optimizer_options(const Config&);
LrOptions lr_options(const Config&);

struct OptimContext {
  std::function<std::string(const std::string&)> where;  // a key was set: "configs/x.json:14", "--optim.lr", ""
  std::function<bool(const char*)> known;                // the key could be read
  std::function<void(const std::string& key, std::string reason, std::string fix)> bad;
  std::vector<std::string>& notes;
};

// Fills in what the types set and the user did not give, takes back what a file says for another type than a flag asks
// for (with a note), and reports everything wrong.
void check_optimizer(Config&, const OptimContext&);

}  // namespace gt
