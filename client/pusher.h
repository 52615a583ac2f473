// A pusher by the best way there is: through shared memory while that works, over gRPC otherwise
// and from the first page on that could not go there.
//
// Threads    every method from any thread
// Ownership  answers that come later than the pusher find its state alive
#pragma once

#include <functional>
#include <memory>

#include "client/client.h"
#include "client/messages.h"
#include "client/push_stream.h"
#include "client/shm_push.h"

namespace pagoda::client {

struct PusherEvents {
  // One was taken through shared memory: its bytes, and how long it took since it was pushed.
  std::function<void(int64_t bytes, absl::Duration took)> on_shm_page;
  std::function<void()> on_fallback;  // one goes over gRPC that had begun there
};

// `shm` may be null. `open_stream` opens a stream for the same pages over gRPC.
std::unique_ptr<Pusher> MakePusher(
    PushConfig config, std::shared_ptr<ShmPushChannel> shm,
    std::function<std::shared_ptr<PushStream>(PushConfig, PushCallback)> open_stream,
    PushCallback callback, PusherEvents events);

}  // namespace pagoda::client
