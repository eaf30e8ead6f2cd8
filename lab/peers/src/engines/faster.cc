// A C face of FASTER's FasterKv for rows of one size: one store a thread, one session, batches.
//
// Reads that need the log on disk go out asynchronously, up to FASTER's own bound of 128 in
// flight, and are completed together at the end of a batch. Nothing here is FASTER's code; its
// headers come from a checkout (see build.rs).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include "core/faster.h"
#include "device/file_system_disk.h"

namespace {

using namespace FASTER::core;

/// Bytes of every row of the store of this thread, which is the only one that uses it. FASTER asks
/// for a value's size without an instance where it decides how much to read.
thread_local uint32_t row_bytes = 0;

/// How many operations pass between two looks at what the device has finished.
constexpr size_t kOperationsPerLook = 32;

class Key {
 public:
  explicit Key(uint64_t id) : id_{id} {}
  static constexpr uint32_t size() { return sizeof(Key); }
  KeyHash GetHash() const { return KeyHash{FasterHashHelper<uint64_t>::compute(id_)}; }
  bool operator==(const Key& other) const { return id_ == other.id_; }
  bool operator!=(const Key& other) const { return id_ != other.id_; }

 private:
  uint64_t id_;
};

/// A row; its bytes begin here and go on for `row_bytes`.
class Row {
 public:
  static uint32_t size() { return row_bytes; }
  void store(const float* from) { std::memcpy(this, from, row_bytes); }
  void load(float* to) const { std::memcpy(to, this, row_bytes); }

 private:
  float first_;
};

struct Failures {
  size_t missing = 0;
  size_t broken = 0;
};

class Reading : public IAsyncContext {
 public:
  using key_t = Key;
  using value_t = Row;

  Reading(uint64_t id, float* row, Failures* failures) : key_{id}, row_{row}, failures_{failures} {}
  Reading(const Reading& other) = default;

  const Key& key() const { return key_; }
  void Get(const Row& row) { row.load(row_); }
  // There is one session, so nobody writes at the same time.
  void GetAtomic(const Row& row) { row.load(row_); }

  void done(Status status) {
    if (status == Status::Ok) return;
    ++(status == Status::NotFound ? failures_->missing : failures_->broken);
    std::fill_n(row_, row_bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN());
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext*& copy) override {
    return IAsyncContext::DeepCopy_Internal(*this, copy);
  }

 private:
  Key key_;
  float* row_;
  Failures* failures_;
};

class Writing : public IAsyncContext {
 public:
  using key_t = Key;
  using value_t = Row;

  Writing(uint64_t id, const float* row) : key_{id}, row_{row} {}
  Writing(const Writing& other) = default;

  const Key& key() const { return key_; }
  static uint32_t value_size() { return row_bytes; }
  static uint32_t value_size(const Row&) { return row_bytes; }
  void Put(Row& row) { row.store(row_); }
  bool PutAtomic(Row& row) {
    row.store(row_);
    return true;
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext*& copy) override {
    return IAsyncContext::DeepCopy_Internal(*this, copy);
  }

 private:
  Key key_;
  const float* row_;
};

using Disk = FASTER::device::FileSystemDisk<FASTER::environment::QueueIoHandler, 1_GiB>;
using Store = FasterKv<Key, Row, Disk>;

}  // namespace

extern "C" {

struct PeersFaster {
  std::unique_ptr<Store> store;
};

/// A new store in `place`, or null and a message of at most `capacity` bytes in `error`.
PeersFaster* peers_faster_open(const char* place, uint32_t words, uint64_t buckets,
                               uint64_t log_bytes, double mutable_fraction,
                               uint64_t read_cache_bytes, char* error, size_t capacity) {
  row_bytes = words * sizeof(float);
  try {
    ReadCacheConfig cache{};
    cache.mem_size = read_cache_bytes;
    cache.mutable_fraction = 0.5;
    cache.pre_allocate = false;
    cache.enabled = read_cache_bytes > 0;
    auto opened = std::make_unique<PeersFaster>();
    opened->store =
        std::make_unique<Store>(buckets, log_bytes, place, mutable_fraction, cache);
    opened->store->StartSession();
    return opened.release();
  } catch (const std::exception& exception) {
    std::snprintf(error, capacity, "%s", exception.what());
    return nullptr;
  }
}

/// Reads `count` rows; those that are missing become NaN. How many could not be read.
size_t peers_faster_get(PeersFaster* opened, const uint64_t* keys, size_t count, float* rows) {
  Failures failures;
  Store& store = *opened->store;
  auto callback = [](IAsyncContext* finished, Status status) {
    CallbackContext<Reading> context{finished};
    context->done(status);
  };
  for (size_t index = 0; index < count; ++index) {
    if (index % kOperationsPerLook == 0) store.CompletePending(false);
    Reading reading{keys[index], rows + index * (row_bytes / sizeof(float)), &failures};
    Status status = store.Read(reading, callback, 1);
    if (status != Status::Pending) reading.done(status);
  }
  store.CompletePending(true);
  return failures.broken;
}

/// Writes `count` rows. How many could not be written.
size_t peers_faster_put(PeersFaster* opened, const uint64_t* keys, size_t count,
                        const float* rows) {
  size_t broken = 0;
  Store& store = *opened->store;
  auto callback = [](IAsyncContext* finished, Status) {
    CallbackContext<Writing> context{finished};
  };
  for (size_t index = 0; index < count; ++index) {
    if (index % kOperationsPerLook == 0) store.CompletePending(false);
    Writing writing{keys[index], rows + index * (row_bytes / sizeof(float))};
    Status status = store.Upsert(writing, callback, 1);
    broken += status != Status::Ok && status != Status::Pending;
  }
  store.CompletePending(true);
  return broken;
}

/// Bytes of the log from its begin to its end, in memory and on disk.
uint64_t peers_faster_log_bytes(PeersFaster* opened) { return opened->store->Size(); }

void peers_faster_close(PeersFaster* opened) {
  opened->store->StopSession();
  delete opened;
}

}  // extern "C"
