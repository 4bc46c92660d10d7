// Ctrl-C and its relatives: the first asks for a stop at the end of the step, the second means now. Handlers set a flag
// that the training loop reads; agreeing on it between ranks is the loop's business.
#pragma once

namespace gt {

// INT, TERM, USR1 and HUP (unless nohup has it ignored) set the flag; INT or TERM after another one ends the process
// with 128 + n. Call once, before anything slow and before threads are made: MPI_Init takes seconds, and a signal that
// finds no handler kills.
void install_stop_signals();

// Standard output and error that were a terminal which is gone go nowhere from now on: a message must not fail where
// there is still a checkpoint to save. A signal handler may call it.
void drop_dead_terminal();

bool stop_requested();
int stop_signal();  // the first signal that came, 0: none

const char* signal_name(int signal);  // "SIGTERM"; "another signal" for the rare ones

}  // namespace gt
