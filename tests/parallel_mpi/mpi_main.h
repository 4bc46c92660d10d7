// Group factory for tests that run under mpirun: one for the program, created by main.
#pragma once
#include "parallel/comm/messages/mpi_group.h"

namespace gt {
MpiFactory& mpi_factory();
}
