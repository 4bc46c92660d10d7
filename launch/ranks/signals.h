// Stop signals: the first requests a stop after the current step, a second request ends the process. Handlers only set
// a flag; the training loop synchronizes it between ranks.
#pragma once

namespace gt {

// INT, TERM, USR1 and HUP (unless ignored by nohup) set the flag; a second request ends the process with 128 + n.
// Requires: called once, before threads are created and before slow initialization. MPI_Init takes seconds, and a
// signal without a handler kills.
void install_stop_signals();

// Redirects standard output and error to /dev/null if their terminal is gone, so that writing a message cannot fail
// before the final checkpoint. Async-signal-safe.
void drop_dead_terminal();

// Whether signal n, so many seconds after the first stop signal, is a second request. Otherwise it is the first by
// another route: timeout(1) signals its child and then the process group, systemd and scancel every process of a job,
// mpirun its ranks. Closing a terminal may send several SIGHUPs. Async-signal-safe.
bool is_second_request(int signal, double seconds);

bool stop_requested();
int stop_signal();  // first signal received; 0: none

const char* signal_name(int signal);  // "SIGTERM"; "another signal" for rare ones

}  // namespace gt
