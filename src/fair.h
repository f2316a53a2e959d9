/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The queue of parked writes: fair between clients, in bytes. Start-time fair queueing (Goyal, Vin and
 * Cheng, SIGCOMM 1996):
 *
 *     a write's start tag = max(virtual time, end of its client's previous one); its end = start + bytes
 *     the write with the least start tag goes first, and virtual time is its start tag
 *
 * A client that had its share a moment ago stays behind those that had not, even if its queue ran empty
 * meanwhile: one that keeps two small writes in flight gets as much as one that keeps 256 large ones, as
 * long as it asks for it. Round robin cannot do that: it forgets a client whose queue is empty.
 *
 * Not locked: the owner's lock (dc_export.lock) is.
 */
#ifndef DC_FAIR_H
#define DC_FAIR_H

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
/** Takes that one off the queue. */
struct dc_waiter *dc_fair_pop(struct dc_fair *f);

#endif
