// PAGODA_CHECK: for what only a fault of our own can break. Prints the condition and aborts, in
// release builds too. What the outside can break (clients, disks, peers) returns absl::Status.
#pragma once

#include <cstdio>
#include <cstdlib>

#define PAGODA_CHECK(condition)                                                                 \
  do {                                                                                          \
    if (__builtin_expect(!(condition), 0)) {                                                    \
      std::fprintf(stderr, "%s:%d: PAGODA_CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                             \
    }                                                                                           \
  } while (false)
