/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * payload.h: bytes that cost nothing to send and still tell where they belong.
 *
 * Every block is a 32-byte stamp (seed, file, offset) followed by a window of one pool of random
 * bytes; the window's place in the pool depends on the file and the offset. The stamp travels in
 * the request's header buffer and the window straight from the pool, so nothing is copied or
 * generated per WRITE; yet a block in the wrong place, of another run or torn in the middle is
 * found on reading back.
 */
#ifndef BENCH_LOAD_PAYLOAD_H
#define BENCH_LOAD_PAYLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAYLOAD_STAMP 32u

struct payload {
	uint64_t seed;
	uint32_t block;
	const unsigned char *pool;
};

int payload_init(struct payload *p, uint64_t seed, uint32_t block);
void payload_stamp(const struct payload *p, uint32_t file, uint64_t offset,
		   unsigned char stamp[PAYLOAD_STAMP]);
/* Where the block's bytes lie: byte n of it (n >= PAYLOAD_STAMP) is pool[payload_at() + n]. */
size_t payload_at(const struct payload *p, uint32_t file, uint64_t offset);
/* Whether data is exactly the block written to file at offset. */
bool payload_matches(const struct payload *p, uint32_t file, uint64_t offset,
		     const unsigned char *data);

#endif
