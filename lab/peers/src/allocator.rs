//! Memory for everything in this program, RocksDB's C++ included: jemalloc, as RocksDB advises for
//! stores with many small allocations. Freed memory goes back to the kernel at once, because a
//! cache that shrinks for a memtable would otherwise count twice against the memory limit.
#![expect(unsafe_code, reason = "jemalloc finds its configuration by the name of a symbol")]

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc reads this as a C string: the first word of a slice is the address of its bytes. Two
/// arenas, as there are two cores; 100 ms is short beside a batch's life in a cache.
#[used]
// SAFETY: jemalloc defines this name weakly, for programs to define it; nothing else uses it.
#[unsafe(export_name = "malloc_conf")]
static CONFIGURATION: &[u8] = b"narenas:2,dirty_decay_ms:100,muzzy_decay_ms:0\0";
