// The one body of all checksum paths. Each path's file includes it once; everything here has
// internal linkage, so that no path's code can stand in for another's. Pure functions, thread-safe.
#pragma once

// How far ahead a hash asks for what it reads: with the library's own distance it waits for memory
// a third of the time. Not measured on other processors, so theirs stays.
#if defined(__x86_64__)
#define XXH_PREFETCH_DIST 2048
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/checksum_kernels.h"

namespace kvtier {
namespace {

constexpr std::size_t kDigestBytes = 8;
// Digests of 2 MiB: blocks up to that need one call for the root, and the array fits a small stack.
constexpr std::size_t kBatchLeaves = 512;

inline void store_digest(unsigned char* target, std::uint64_t digest) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  digest = __builtin_bswap64(digest);
#endif
  std::memcpy(target, &digest, kDigestBytes);
}

inline void copy_leaf(unsigned char* target, const unsigned char* source) {
  // Pieces of one cache line become plain vector moves; one memcpy of a constant 4 KiB would become
  // a string instruction, which is slow to start. Without the barrier GCC sees through that. What
  // is asked for ahead is the next leaf.
  for (std::size_t offset = 0; offset < kKernelLeafBytes; offset += 64) {
    __builtin_prefetch(source + offset + kKernelLeafBytes);
    std::memcpy(target + offset, source + offset, 64);
    __asm__ volatile("" : : : "memory");
  }
}

// From this size on a copy goes past the caches: a plain store would first read the line that it
// overwrites, a third of the traffic, and push out what others have there. Smaller copies are
// mostly read again at once.
constexpr std::size_t kStreamBytesMin = 32 * 1024;
constexpr std::size_t kLineBytes = 64;

#if defined(__x86_64__)
constexpr bool kHasStreaming = true;

// Copies whole lines to a target that starts on one. Visible to others only after end_streaming().
inline void stream_lines(unsigned char* target, const unsigned char* source,
                         std::size_t num_bytes) {
  for (std::size_t offset = 0; offset < num_bytes; offset += kLineBytes) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + offset),
                        _mm512_loadu_si512(source + offset));
#elif defined(__AVX2__)
    for (std::size_t part = 0; part < kLineBytes; part += 32) {
      const auto* from = reinterpret_cast<const __m256i*>(source + offset + part);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(target + offset + part),
                          _mm256_loadu_si256(from));
    }
#else
    for (std::size_t part = 0; part < kLineBytes; part += 16) {
      const auto* from = reinterpret_cast<const __m128i*>(source + offset + part);
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + offset + part), _mm_loadu_si128(from));
    }
#endif
  }
}

inline void end_streaming() { _mm_sfence(); }
#else
// Other processors notice by themselves that whole lines are overwritten.
constexpr bool kHasStreaming = false;

inline void stream_lines(unsigned char* target, const unsigned char* source,
                         std::size_t num_bytes) {
  std::memcpy(target, source, num_bytes);
}

inline void end_streaming() {}
#endif

inline bool starts_a_line(const unsigned char* bytes) {
  return reinterpret_cast<std::uintptr_t>(bytes) % kLineBytes == 0;
}

void kernel_copy(unsigned char* target, const unsigned char* source, std::size_t num_bytes) {
  if (!kHasStreaming || num_bytes < kStreamBytesMin) {
    std::memcpy(target, source, num_bytes);
    return;
  }
  const std::size_t over_bytes = reinterpret_cast<std::uintptr_t>(target) % kLineBytes;
  const std::size_t head_bytes = over_bytes == 0 ? 0 : kLineBytes - over_bytes;
  const std::size_t line_bytes = (num_bytes - head_bytes) / kLineBytes * kLineBytes;
  const std::size_t tail_offset = head_bytes + line_bytes;
  std::memcpy(target, source, head_bytes);
  stream_lines(target + head_bytes, source + head_bytes, line_bytes);
  std::memcpy(target + tail_offset, source + tail_offset, num_bytes - tail_offset);
  end_streaming();
#if defined(__AVX__)
  __builtin_ia32_vzeroupper();
#endif
}

// Hashes `num_leaves` leaves, of which the last may be short, into `digests`. When copying, what is
// hashed are the bytes that arrive: they are what the checksum will vouch for.
template <bool kIsCopying>
inline void hash_leaves(unsigned char* target, const unsigned char* source, std::size_t num_bytes,
                        unsigned char* digests) {
  const std::size_t num_whole = num_bytes / kKernelLeafBytes;
  const bool is_streamed =
      kIsCopying && kHasStreaming && num_bytes >= kStreamBytesMin && starts_a_line(target);
  for (std::size_t leaf_index = 0; leaf_index < num_whole; ++leaf_index) {
    const std::size_t offset = leaf_index * kKernelLeafBytes;
    if (is_streamed) {
      // By way of the innermost cache, so that the source is read once and the target never.
      alignas(kLineBytes) unsigned char passing[kKernelLeafBytes];
      copy_leaf(passing, source + offset);
      store_digest(digests + leaf_index * kDigestBytes, XXH3_64bits(passing, kKernelLeafBytes));
      stream_lines(target + offset, passing, kKernelLeafBytes);
      continue;
    }
    if (kIsCopying) copy_leaf(target + offset, source + offset);
    const unsigned char* leaf = kIsCopying ? target + offset : source + offset;
    store_digest(digests + leaf_index * kDigestBytes, XXH3_64bits(leaf, kKernelLeafBytes));
  }
  if (is_streamed) end_streaming();
  const std::size_t rest_offset = num_whole * kKernelLeafBytes;
  const std::size_t rest_bytes = num_bytes - rest_offset;
  if (rest_bytes == 0) return;
  unsigned char leaf[kKernelLeafBytes];
  std::memcpy(leaf, source + rest_offset, rest_bytes);
  std::memset(leaf + rest_bytes, 0, kKernelLeafBytes - rest_bytes);
  if (kIsCopying) std::memcpy(target + rest_offset, leaf, rest_bytes);
  store_digest(digests + num_whole * kDigestBytes, XXH3_64bits(leaf, kKernelLeafBytes));
}

template <bool kIsCopying>
inline std::uint64_t hash_part(unsigned char* target, const unsigned char* source,
                               std::size_t num_bytes, const unsigned char* tail) {
  constexpr std::size_t kBatchBytes = kBatchLeaves * kKernelLeafBytes;
  unsigned char digests[kBatchLeaves * kDigestBytes + kRootTailBytes];
  if (num_bytes <= kBatchBytes) {
    const std::size_t num_leaves = (num_bytes + kKernelLeafBytes - 1) / kKernelLeafBytes;
    hash_leaves<kIsCopying>(target, source, num_bytes, digests);
    std::memcpy(digests + num_leaves * kDigestBytes, tail, kRootTailBytes);
    return XXH3_64bits(digests, num_leaves * kDigestBytes + kRootTailBytes);
  }
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  while (num_bytes > 0) {
    const std::size_t batch_bytes = num_bytes < kBatchBytes ? num_bytes : kBatchBytes;
    const std::size_t num_leaves = (batch_bytes + kKernelLeafBytes - 1) / kKernelLeafBytes;
    hash_leaves<kIsCopying>(target, source, batch_bytes, digests);
    XXH3_64bits_update(&state, digests, num_leaves * kDigestBytes);
    source += batch_bytes;
    if (kIsCopying) target += batch_bytes;
    num_bytes -= batch_bytes;
  }
  XXH3_64bits_update(&state, tail, kRootTailBytes);
  return XXH3_64bits_digest(&state);
}

// Leaves no set bits in the upper halves of the vector registers: GCC 12 omits that after the hash
// of a leaf, and the narrow vector code of the whole thread then runs at a fraction of its speed.
inline std::uint64_t with_clean_registers(std::uint64_t checksum) {
#if defined(__AVX__)
  __builtin_ia32_vzeroupper();
#endif
  return checksum;
}

std::uint64_t kernel_checksum_part(const unsigned char* source, std::size_t num_bytes,
                                   const unsigned char* tail) {
  return with_clean_registers(hash_part<false>(nullptr, source, num_bytes, tail));
}

std::uint64_t kernel_copy_and_checksum_part(unsigned char* target, const unsigned char* source,
                                            std::size_t num_bytes, const unsigned char* tail) {
  return with_clean_registers(hash_part<true>(target, source, num_bytes, tail));
}

void kernel_digest_leaves(const unsigned char* source, std::size_t num_bytes,
                          unsigned char* digests) {
  hash_leaves<false>(nullptr, source, num_bytes, digests);
#if defined(__AVX__)
  __builtin_ia32_vzeroupper();
#endif
}

void kernel_copy_and_digest_leaves(unsigned char* target, const unsigned char* source,
                                   std::size_t num_bytes, unsigned char* digests) {
  hash_leaves<true>(target, source, num_bytes, digests);
#if defined(__AVX__)
  __builtin_ia32_vzeroupper();
#endif
}

std::uint64_t kernel_checksum_metadata(const unsigned char* source, std::size_t num_bytes,
                                       std::uint64_t purpose) {
  return with_clean_registers(XXH3_64bits_withSeed(source, num_bytes, purpose));
}

constexpr ChecksumKernels make_checksum_kernels(const char* name) {
  return {name,
          kernel_checksum_part,
          kernel_copy_and_checksum_part,
          kernel_digest_leaves,
          kernel_copy_and_digest_leaves,
          kernel_copy,
          kernel_checksum_metadata};
}

}  // namespace
}  // namespace kvtier
