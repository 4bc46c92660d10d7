// What this process needs of its environment before it does anything: standard descriptors, stack, signals of limits.
#pragma once
#include <string>

namespace gt {

// Opens /dev/null for each of the descriptors 0 to 2 that is closed (`gpttrain ... <&- >&-`): a file opened later would
// otherwise get its number, and console lines. Ignores SIGXFSZ: a file beyond `ulimit -f` is an error of the write, as
// on a full disk. Raises a stack limit that the program would overflow, for this and new threads. Throws kUsage if the
// limit cannot be raised enough. Called first in main.
void prepare_process();

// Path of this program; argv[0]'s file where /proc is not mounted; "" if unknown.
std::string own_program();

}  // namespace gt
