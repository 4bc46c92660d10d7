// Job of ranks that were started by setting variables alone: by torchrun, or by this program on one machine.
#pragma once
#include "launch/hosts/rank_env.h"
#include "parallel/comm/messages/socket_rendezvous.h"

namespace gt {

// Returns the job that torchrun's variables describe, without its time limit. Throws kUsage naming a variable that is
// missing or wrong. If torchrun's own store occupies MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE), the ranks use the next
// 8 ports. The secret is GPTTRAIN_JOB_SECRET, else TORCHELASTIC_RUN_ID.
SocketJob socket_job(const RankEnv&, const Lookup& lookup);
SocketJob socket_job(const RankEnv&);

}  // namespace gt
