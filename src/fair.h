/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The queue of parked writes: fair between clients, in bytes. Start-time fair queueing (Goyal, Vin and
 * Cheng, SIGCOMM 1996):
 *
 *     a write's start tag = max(virtual time - LAG, end of its client's previous one); end = start + bytes
 *     the write with the least start tag goes first; virtual time is the greatest start tag so far
 *
 * A client that had its share a moment ago stays behind those that had not, even if its queue ran empty
 * meanwhile. And one that keeps two small writes in flight, and so has none waiting just when another's large one
 * is let in, may make up for that: by up to LAG, two of the largest writes. (The paper's LAG is 0; with it, such a
 * client got an eighth.) Round robin can do neither: it forgets a client whose queue is empty.
 *
 * Not locked: the owner's lock (dc_export.lock) is.
 */
#ifndef DC_FAIR_H
#define DC_FAIR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct dc_waiter;

/* A client with parked writes, or whose last one's end lies ahead of virtual time. */
struct dc_flow {
	uint64_t client;
	uint64_t finish; /* end tag of its last write: bytes */
	struct dc_waiter *first, **last;
	uint32_t heap_index;
	LIST_ENTRY(dc_flow) hash;
	TAILQ_ENTRY(dc_flow) idle; /* while its queue is empty */
};

struct dc_fair {
	uint64_t now; /* virtual time: bytes */
	uint64_t order;
	struct dc_flow **heap; /* those with writes, by start tag, then by arrival */
	uint32_t nr, cap;
	LIST_HEAD(dc_flow_list, dc_flow) * bucket;
	uint32_t nr_buckets, nr_flows;
	TAILQ_HEAD(, dc_flow) idle;
};

void dc_fair_init(struct dc_fair *f);
/** Nothing may be queued. */
void dc_fair_free(struct dc_fair *f);
/** Queues w (client, bytes; uses next, start and order). */
void dc_fair_push(struct dc_fair *f, struct dc_waiter *w);
/** The write whose turn it is; NULL if none is queued. */
struct dc_waiter *dc_fair_first(const struct dc_fair *f);
/** Has this client nothing queued, and had less than its share? Then its next write need not wait for others'. */
bool dc_fair_behind(const struct dc_fair *f, uint64_t client);
/** It wrote so much without having been queued. */
void dc_fair_charge(struct dc_fair *f, uint64_t client, uint64_t bytes);
/** Takes that one off the queue. */
struct dc_waiter *dc_fair_pop(struct dc_fair *f);

#endif
