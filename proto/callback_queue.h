// gRPC's callback API runs on one completion queue per process. gRPC 1.51 takes it down with the
// last channel or server that used it, and two of its threads may then drop the same reference
// ("ref_counted.h: assertion failed: prior > 0", then abort). A process that keeps one user for
// ever never takes it down.
#pragma once

namespace pagoda {

// Call before the first channel or server with callbacks. Any thread, any number of times. Costs
// one idle channel for the life of the process.
void KeepCallbackQueue();

}  // namespace pagoda
