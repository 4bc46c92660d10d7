// Stop signals: the first requests a stop after the current step, a second request ends the process. Handlers only set
// a flag; the training loop synchronizes it between ranks.
#pragma once

namespace gt {

// INT, TERM, USR1 and HUP (unless ignored by nohup) set the flag; a second request ends the process with 128 + n.
// Requires: called once, before threads are created and before slow initialization. MPI_Init takes seconds, and a
// signal without a handler kills.
void install_stop_signals();

// From now on a broken pipe behind standard output or error (`gpttrain ... | head`) is replaced by /dev/null, and this
// process goes on without it. Requires: as install_stop_signals().
void survive_console();

// Set for ranks whose launcher ignores SIGHUP (nohup), because mpirun resets that for its ranks.
constexpr const char* kNoHangupVariable = "GPTTRAIN_NOHUP";
bool ignores_hangup();  // of this process

// Redirects standard output and error to /dev/null if their terminal or the reader of their pipe is gone, so that
// writing a message cannot fail before the final checkpoint. Async-signal-safe.
void drop_dead_console();

// Whether signal n, so many seconds after the first stop signal, is a second request. Otherwise it is the first by
// another route: timeout(1) signals its child and then the process group, systemd and scancel every process of a job,
// mpirun its ranks. Async-signal-safe.
bool is_second_request(int signal, double seconds);
// Whether a signal counts as the first of two. SIGHUP does not: closing a terminal may send several, and a logout or
// shutdown that closes it sends SIGTERM afterwards. Neither does a SIGUSR1 that the launcher of a rank forwards.
bool precedes_second_request(int signal);

bool stop_requested();
int stop_signal();  // first signal received; 0: none

const char* signal_name(int signal);  // "SIGTERM"; "another signal" for rare ones

}  // namespace gt
