// Ctrl-C and its relatives: the first asks for a stop at the end of the step, the second means now. Handlers set a flag
// that the training loop reads; agreeing on it between ranks is the loop's business.
#pragma once

namespace gt {

// INT, TERM and USR1 set the flag; INT or TERM again ends the process with 128 + n. Call once, before anything slow.
void install_stop_signals();

bool stop_requested();
int stop_signal();  // the first signal that came, 0: none

const char* signal_name(int signal);  // "SIGTERM"; "another signal" for the rare ones

}  // namespace gt
