#include "pusher.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "buffer.h"
#include "convert.h"
#include "gil.h"
#include "python_thread.h"
#include "storage/base/clock.h"
#include "storage/base/crc32c.h"
#include "storage/base/status_macros.h"
#include "wait.h"

namespace pagoda::python {
namespace nb = nanobind;
using nb::literals::operator""_a;
namespace {

const char* OutcomeName(client::PushOutcome outcome) {
  switch (outcome) {
    case client::PushOutcome::kStored:
      return "stored";
    case client::PushOutcome::kAlreadyStored:
      return "already_stored";
    case client::PushOutcome::kReplaced:
      return "replaced";
  }
  return "unknown";
}

std::string TextOfOutcome(const absl::StatusOr<client::PushOutcome>& outcome) {
  if (outcome.ok()) return OutcomeName(*outcome);
  return absl::StrCat(absl::StatusCodeToString(outcome.status().code()), ": ",
                      outcome.status().message());
}

// Buffers as the owner of a page's memory: Python gets them back when the library drops it.
std::shared_ptr<const void> OwnerOf(std::vector<Buffer> buffers) {
  return std::shared_ptr<const void>(
      new std::vector<Buffer>(std::move(buffers)),
      [](const std::vector<Buffer>* held) { RunWithPython([held] { delete held; }); });
}

}  // namespace

void PusherState::Open(std::shared_ptr<client::Pusher> pusher) {
  absl::MutexLock lock(&mutex_);
  pusher_.Set(std::move(pusher));
}

void PusherState::Close() {
  std::shared_ptr<client::Pusher> pusher;
  absl::MutexLock lock(&mutex_);
  pusher = pusher_.Take();
}

absl::StatusOr<std::shared_ptr<client::Pusher>> PusherState::Get() const {
  absl::MutexLock lock(&mutex_);
  if (pusher_.get() == nullptr || pusher_.forked()) {
    return absl::FailedPreconditionError("the pusher is over: its client is closed");
  }
  return pusher_.get();
}

absl::Status PusherState::Push(client::PushItem item) {
  PAGODA_ASSIGN_OR_RETURN(const std::shared_ptr<client::Pusher> pusher, Get());
  int64_t bytes = 0;
  for (const ByteSpan segment : item.segments) {
    item.segment_crc32c.push_back(Crc32c(segment));
    bytes += static_cast<int64_t>(segment.size());
  }
  {
    absl::MutexLock lock(&mutex_);
    if (unheard_ >= kUnheardPagesMax) {
      return absl::ResourceExhaustedError(absl::StrCat("push: ", unheard_,
                                                       " answers wait for the callback, at most ",
                                                       kUnheardPagesMax, ": it is too slow"));
    }
    // Before the answer can come.
    ++counts_.pushed;
    counts_.bytes += bytes;
  }
  absl::Status status = pusher->Push(std::move(item));
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    --counts_.pushed;
    counts_.bytes -= bytes;
  }
  return status;
}

absl::StatusOr<client::PushMemory> PusherState::Reserve(int64_t bytes) {
  PAGODA_ASSIGN_OR_RETURN(const std::shared_ptr<client::Pusher> pusher, Get());
  return pusher->Reserve(bytes);
}

absl::Status PusherState::Flush(absl::Duration timeout) {
  const absl::Duration end = SystemClock().Monotonic() + timeout;
  PAGODA_ASSIGN_OR_RETURN(const std::shared_ptr<client::Pusher> pusher, Get());
  PAGODA_RETURN_IF_ERROR(pusher->Flush(timeout));
  if (OnPythonThread()) return absl::OkStatus();  // a callback cannot wait for those after it
  absl::MutexLock lock(&mutex_);
  const auto heard = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return unheard_ == 0; };
  const absl::Duration left = std::max(end - SystemClock().Monotonic(), absl::ZeroDuration());
  if (mutex_.AwaitWithTimeout(absl::Condition(&heard), left)) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(unheard_, " answers wait for the callback"));
}

void PusherState::Answered(const PageKey& key, const absl::StatusOr<client::PushOutcome>& outcome) {
  {
    absl::MutexLock lock(&mutex_);
    if (!outcome.ok()) {
      ++counts_.failed;
    } else if (*outcome == client::PushOutcome::kStored) {
      ++counts_.stored;
    } else if (*outcome == client::PushOutcome::kAlreadyStored) {
      ++counts_.already_stored;
    } else {
      ++counts_.replaced;
    }
    if (!has_callback_) return;
    ++unheard_;
  }
  RunWithPython([self = shared_from_this(), key, text = TextOfOutcome(outcome)] {
    self->CallBack(key, text);
  });
}

void PusherState::CallBack(const PageKey& key, const std::string& outcome) {
  // Held by itself: the callback may end the pusher.
  if (const nb::object callback = callback_; callback.is_valid()) {
    try {
      callback(PyBytes(key.view()), PyStr(outcome));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable(callback);
    }
  }
  absl::MutexLock lock(&mutex_);
  --unheard_;
}

PushCounts PusherState::counts() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

PyPusher::~PyPusher() {
  if (state_ == nullptr) return;
  const nb::object callback = state_->TakeCallback();
  WithoutGil([this] {
    state_->Close();
    state_ = nullptr;
    client_ = nullptr;
  });
}

namespace {

void Push(PyPusher& self, const client::ScopeInfo& scope, const nb::bytes& key,
          const nb::bytes& parent, nb::handle segments, bool parent_is_root, nb::handle token_ids,
          uint64_t base_position, const std::string& fidelity, const std::string& precision,
          std::pair<int64_t, int64_t> part, uint32_t opaque_layer_bytes) {
  client::PushItem item;
  item.scope = scope.id;
  item.key = IdOf<PageKey>(key, "key");
  item.parent = IdOf<PageKey>(parent, "parent");
  item.parent_is_root = parent_is_root;
  item.token_ids = TokensOf(token_ids);
  item.base_position = base_position;
  item.fidelity = PrecisionOf(fidelity, "fidelity");
  item.precision = PrecisionOf(precision, "precision");
  item.opaque_layer_bytes = opaque_layer_bytes;
  item.part = PartOf(part);
  std::vector<Buffer> buffers;
  for (const nb::object& segment : ElementsOf(segments, "segments")) {
    buffers.emplace_back(segment, absl::StrCat("segments[", buffers.size(), "]"));
    item.segments.push_back(buffers.back().bytes());
  }
  item.owner = OwnerOf(std::move(buffers));
  RaiseIfError(WithoutGil([&] { return self.state().Push(std::move(item)); }));
}

nb::object Reserve(PyPusher& self, int64_t size) {
  if (size <= 0) {
    Raise(absl::InvalidArgumentError(
        absl::StrCat("reserve: size is ", size, "; accepted: 1 byte and more")));
  }
  client::PushMemory memory = ValueOrRaise(WithoutGil([&] { return self.state().Reserve(size); }));
  const nb::capsule owner(
      new std::shared_ptr<const void>(std::move(memory.owner)),
      [](void* held) noexcept { delete static_cast<std::shared_ptr<const void>*>(held); });
  using Array = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>, nb::c_contig>;
  return nb::cast(
      Array(reinterpret_cast<uint8_t*>(memory.bytes.data()), {memory.bytes.size()}, owner),
      nb::rv_policy::reference);
}

nb::dict Stats(const PyPusher& self) {
  const PushCounts counts = self.state().counts();
  nb::dict stats;
  stats["pushed"] = counts.pushed;
  stats["stored"] = counts.stored;
  stats["already_stored"] = counts.already_stored;
  stats["replaced"] = counts.replaced;
  stats["failed"] = counts.failed;
  stats["bytes"] = counts.bytes;
  return stats;
}

// A callback is often a method of what holds the pusher: a cycle that Python's collector must see.
int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  Py_VISIT(nb::inst_ptr<PyPusher>(self)->state().callback().ptr());
  return 0;
}

int Clear(PyObject* self) {
  const nb::object callback = nb::inst_ptr<PyPusher>(self)->state().TakeCallback();
  return 0;
}

PyType_Slot kSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(Traverse)},
                        {Py_tp_clear, reinterpret_cast<void*>(Clear)},
                        {0, nullptr}};

}  // namespace

void RegisterPusher(nb::module_& module) {
  nb::class_<PyPusher>(module, "Pusher", nb::type_slots(kSlots),
                       "A stream of pages. Never waits but in flush().")
      .def("push", &Push, "scope"_a, "key"_a, "parent"_a, "segments"_a, nb::kw_only(),
           "parent_is_root"_a = false, "token_ids"_a = nb::none(), "base_position"_a = 0,
           "fidelity"_a = "raw16", "precision"_a = "raw16", "part"_a = nb::make_tuple(0, 0),
           "opaque_layer_bytes"_a = 0,
           "Queues a page. Its segments are buffers: contiguous, held and not to be written until\n"
           "the page is answered.")
      .def("reserve", &Reserve, "size"_a,
           "Writable memory that the daemon can read: segments in it are pushed without a copy\n"
           "here. It is bounded; beyond that it is plain memory.")
      .def(
          "flush",
          [](PyPusher& self, double timeout) {
            WaitInSteps(SecondsOf(timeout, "timeout"),
                        [&](absl::Duration step) { return self.state().Flush(step); });
          },
          "timeout"_a, "Until every page is answered, and the callback has heard of it.")
      .def("stats", &Stats);
}

}  // namespace pagoda::python
