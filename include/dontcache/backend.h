/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A backend does the flusher's I/O: it takes operations, and hands them back done.
 *
 * A device has one for its flusher and one for what clients wait for (src/stable.c). submit() and
 * wait() are called by the one thread that owns it; everything else by any thread. The engine knows
 * nothing else about how I/O happens, so that the simulator and the fault injector
 * (src/backend_fault.c) are just two more of these.
 */
#ifndef DONTCACHE_BACKEND_H
#define DONTCACHE_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

enum dc_op_kind {
	/* Starts writing the range's dirty pages, then waits for them. NOT durability: no metadata,
	 * no cache flush. A page that is dirty and under writeback already when the operation begins
	 * is waited for but not written again; with `strict` it is, at the cost of tagging every
	 * page first (measured: 1.3 times the throughput and half the p99.9 without). Reports the
	 * file's pending writeback error, and by that consumes it: the caller must record it. */
	DC_OP_WRITEBACK,
	/* Removes the range's clean pages from the page cache. Best effort. */
	DC_OP_DROP,
	/* fdatasync(2) of the range, or of the whole file (len 0). A backend that cannot do less
	 * does the whole file. Reports and consumes errors as above. */
	DC_OP_SYNC,
};

struct dc_op {
	enum dc_op_kind kind;
	bool strict;
	int fd;
	uint64_t offset, len; /* bytes */
	int res;	      /* 0 or -errno, once done */
	int injected;	      /* by the fault backend: replaces res */
	struct dc_op *next;   /* list of those that wait() returns */
	/* Its owner's: called with the operation when wait() has returned it; NULL: a flusher's
	 * turn (struct dc_turn). */
	void (*done)(struct dc_op *op);
};

/* What the page cache holds of a range, in pages. */
struct dc_cachestat {
	uint64_t cached, dirty, writeback;
};

struct dc_backend;

struct dc_backend_ops {
	const char *name;
	/** Queues one operation; it may start at once, or only in wait(). Never fails: an operation
	 * that cannot be started comes back from wait() with its error. */
	void (*submit)(struct dc_backend *be, struct dc_op *op);
	/** Starts what is queued, then waits until something is done, wake() was called, or
	 * timeout_ns passed (< 0: no timeout). Returns the operations done, linked by next. */
	struct dc_op *(*wait)(struct dc_backend *be, int64_t timeout_ns);
	/** Ends the current or the next wait(). Any thread; costs a system call. */
	void (*wake)(struct dc_backend *be);
	/** fdatasync(2) semantics for the whole file. Blocks. Any thread. 0 or -errno. */
	int (*sync)(struct dc_backend *be, int fd);
	/** As DC_OP_WRITEBACK (strict) and DC_OP_DROP, but in the caller's thread. */
	int (*writeback)(struct dc_backend *be, int fd, uint64_t offset, uint64_t len);
	void (*drop)(struct dc_backend *be, int fd, uint64_t offset, uint64_t len);
	/** cachestat(2) of a range: consumes no error. Any thread; cheap. -ENOSYS where the kernel
	 * (before 6.5) has none. */
	int (*cachestat)(struct dc_backend *be, int fd, uint64_t offset, uint64_t len,
			 struct dc_cachestat *st);
	/** The descriptor's pending writeback error, 0 or -errno, consumed; waits for nothing. Any
	 * thread. */
	int (*error)(struct dc_backend *be, int fd);
	/** A further open file description of the same file: one with an error cursor of its own
	 * (dup(2) would share it). -errno if there is none. Any thread. */
	int (*reopen)(struct dc_backend *be, int fd);
	/** Nothing may be in flight. */
	void (*free)(struct dc_backend *be);
};

/* The first member of every backend. */
struct dc_backend {
	const struct dc_backend_ops *ops;
};

/** io_uring. NULL with *err = -errno where the kernel or its administrator refuses it. */
struct dc_backend *dc_backend_uring(int *err);

/** Plain system calls on a few threads of its own: the fallback. */
struct dc_backend *dc_backend_threads(int *err);

#endif
