// Relocatable bundle (launch/bundle.sh): the program in bin/, its libraries in lib/, Open MPI's launcher and plugins
// beside them. Libraries are found by relative rpaths; Open MPI and PMIx need the paths of their plugins.
#pragma once
#include <string>

namespace gt {

// Returns the root of the bundle that this program runs from; empty if it is not in one.
std::string bundle_folder();

// Path of a program: the bundle's, else that in PATH; "" if neither has it.
std::string find_program(const std::string& name);

// In a bundle: sets the environment variables that point Open MPI and PMIx to it, for this process and its children. No
// effect otherwise. Variables set by a foreign mpirun are overwritten, because its plugins may not match the bundle's
// libraries. Requires: called before threads are created and before MPI_Init.
void use_bundled_mpi();

}  // namespace gt
