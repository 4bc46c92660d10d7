// Ranks for tests that run under mpirun: one factory for the program, made by main.
#pragma once
#include "parallel/comm/mpi_group.h"

namespace gt {
MpiFactory& mpi_factory();
}
