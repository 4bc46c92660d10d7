// Which config keys act in which subcommand: its --help lists them and all others are refused as flags. train, bench and
// verify take every key, so that the command line of a training run can be timed or proved as it stands.
#pragma once
#include <string>
#include <vector>

namespace gt {

// Patterns for admits() (launch/config/config.h); empty: every key.
std::vector<std::string> keys_of_verb(const std::string& verb);

}  // namespace gt
