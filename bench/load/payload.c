/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * payload.c: see payload.h. The pool is a megabyte larger than a block: enough windows that
 * neighbours differ, small enough to stay in a CPU's cache, as the buffers of a client that just
 * produced its data do.
 */
#include "payload.h"

#include <string.h>
#include <sys/mman.h>

#define SPARE (1u << 20)

static uint64_t mix(uint64_t x) /* the finalizer of splitmix64 */
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

int payload_init(struct payload *p, uint64_t seed, uint32_t block)
{
	size_t size = (size_t)block + SPARE;
	p->seed = seed;
	p->block = block;
	uint64_t *words = mmap(NULL, size, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (words == MAP_FAILED)
		return -1;
	for (size_t i = 0; i < size / 8; i++)
		words[i] = mix(seed + (i + 1) * 0x9e3779b97f4a7c15u);
	p->pool = (const unsigned char *)words;
	return 0;
}

void payload_stamp(const struct payload *p, uint32_t file, uint64_t offset,
		   unsigned char stamp[PAYLOAD_STAMP])
{
	uint64_t words[4] = { p->seed, file, offset, mix(p->seed ^ mix(offset + file)) };
	memcpy(stamp, words, PAYLOAD_STAMP);
}

size_t payload_at(const struct payload *p, uint32_t file, uint64_t offset)
{
	return mix(p->seed ^ mix(offset + 1) ^ file) % SPARE & ~(size_t)63;
}

bool payload_matches(const struct payload *p, uint32_t file, uint64_t offset,
		     const unsigned char *data)
{
	unsigned char stamp[PAYLOAD_STAMP];
	payload_stamp(p, file, offset, stamp);
	return !memcmp(data, stamp, PAYLOAD_STAMP) &&
	       !memcmp(data + PAYLOAD_STAMP, p->pool + payload_at(p, file, offset) + PAYLOAD_STAMP,
		       p->block - PAYLOAD_STAMP);
}
