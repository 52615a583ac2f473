// The one thread of this module that takes the GIL. Threads of the library hand it what only Python
// can do, giving back objects and calling callbacks, and go on: none of them ever waits for the
// GIL, so that whoever holds it may wait for them.
//
// Threads    every function from any thread, with or without the GIL
// Lifetime   begins with the first task; after StopPythonThread() tasks are dropped, and what they
//            hold is left to the end of the process. A forked child begins anew.
#pragma once

#include <functional>

namespace pagoda::python {

// `task` is called with the GIL, in order, and does not throw.
void RunWithPython(std::function<void()> task);

bool OnPythonThread();

// Runs what is queued and ends. Without the GIL, or it would wait for itself; before Python ends.
void StopPythonThread();

// Differs between a process and those it forked: threads, and what needs them, stay behind there.
int ForkGeneration();

}  // namespace pagoda::python
