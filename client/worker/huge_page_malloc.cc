// The allocator of programs that run a model: jemalloc, told to ask for huge pages. Every token
// reads all weights and the whole of its context once; on pages of 4 KiB the processor's
// translations miss all the way, and decode at 4,096 tokens takes 1.4 times as long. glibc can do
// it too, but only by an environment variable that must be set before the program starts.
//
// Where the kernel's transparent_hugepage/enabled is `never` it is a plain malloc.
extern "C" {
// Read by jemalloc when it starts; the name is its interface.
const char* malloc_conf = "thp:always";
}
