// Stop signals: the first requests a stop after the current step, the second ends the process. Handlers only set a
// flag; the training loop synchronizes it between ranks.
#pragma once

namespace gt {

// INT, TERM, USR1 and HUP (unless ignored by nohup) set the flag; a further INT or TERM ends the process with 128 + n.
// Requires: called once, before threads are created and before slow initialization. MPI_Init takes seconds, and a
// signal without a handler kills.
void install_stop_signals();

// Redirects standard output and error to /dev/null if their terminal is gone, so that writing a message cannot fail
// before the final checkpoint. Async-signal-safe.
void drop_dead_terminal();

bool stop_requested();
int stop_signal();  // first signal received; 0: none

const char* signal_name(int signal);  // "SIGTERM"; "another signal" for rare ones

}  // namespace gt
