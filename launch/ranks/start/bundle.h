// The portable bundle (launch/bundle.sh): a folder with the program in bin/, its libraries in lib/ and Open MPI's launcher
// and plugins beside them, that may lie anywhere. Libraries find each other by relative paths; Open MPI and PMIx have to
// be told where their plugins are. Knows nothing of how a bundle is made.
#pragma once
#include <string>

namespace gt {

// The folder of the bundle that this program runs from; empty when it is none.
std::string bundle_folder();

// In a bundle: points Open MPI and PMIx to it through the environment, this process' own and that of what it starts. The
// variables that a foreign mpirun has set are overwritten: the libraries of this process are the bundle's, and plugins
// of another version would not fit them. Before threads and before MPI_Init. Otherwise nothing.
void use_bundled_mpi();

}  // namespace gt
